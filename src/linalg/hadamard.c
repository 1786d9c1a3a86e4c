#include "linalg/hadamard.h"

#include <stdlib.h>

#include "base/base.h"

typedef enum rule { RULE_NONE, RULE_SYLVESTER, RULE_PALEY1, RULE_PALEY2, RULE_WILLIAMSON, RULE_DOUBLING } rule;

static const char *const rule_names[] = {NULL, "sylvester", "paley1", "paley2", "williamson", "doubling"};

/* Bit x - 1 of a mask says that entries x and t - x of that circulant's first row are -1. */
typedef struct williamson_order {
    unsigned t;
    uint32_t mask[4];
} williamson_order;

static const williamson_order williamson_orders[] = {
    {13, {17, 57, 57, 46}},
    {39, {88569, 512838, 179255, 248183}},
    {43, {1189991, 1993998, 1709460, 634626}},
};

static const williamson_order *find_williamson(size_t t) {
    for (size_t i = 0; i < RQ_COUNT_OF(williamson_orders); i++)
        if (williamson_orders[i].t == t) return &williamson_orders[i];
    return NULL;
}

static bool is_prime(size_t q) {
    if (q < 2) return false;
    for (size_t d = 2; d * d <= q; d++)
        if (q % d == 0) return false;
    return true;
}

static bool is_power_of_two(size_t x) { return x && (x & (x - 1)) == 0; }

static rule rule_of(size_t K) {
    if (K > RQ_HADAMARD_K_MAX) return RULE_NONE;
    if (is_power_of_two(K)) return RULE_SYLVESTER;
    if (K == 0 || K % 4) return RULE_NONE;
    if (is_prime(K - 1)) return RULE_PALEY1; /* K - 1 is 3 mod 4 */
    if ((K / 2 - 1) % 4 == 1 && is_prime(K / 2 - 1)) return RULE_PALEY2;
    if (find_williamson(K / 4)) return RULE_WILLIAMSON;
    if (rule_of(K / 2) != RULE_NONE) return RULE_DOUBLING;
    return RULE_NONE;
}

const char *rq_hadamard_construction(size_t K) { return rule_names[rule_of(K)]; }

bool rq_hadamard_split(size_t order, size_t *K, unsigned *m, const char **construction) {
    if (order == 0) return false;
    unsigned twos = 0;
    size_t odd = order;
    while (odd % 2 == 0) {
        odd /= 2;
        twos++;
    }
    const bool sylvester = odd == 1;
    if (!sylvester && (twos < 2 || odd > RQ_HADAMARD_K_MAX / 4)) return false;
    const size_t k = sylvester ? 1 : 4 * odd;
    const char *name = rq_hadamard_construction(k);
    if (!name) return false;
    *K = k;
    *m = sylvester ? twos : twos - 2;
    *construction = name;
    return true;
}

/* chi[x] = 1 on the non-zero squares mod q, -1 on the rest, 0 at 0. */
static void quadratic_character(size_t q, int8_t chi[RQ_HADAMARD_K_MAX]) {
    for (size_t x = 1; x < q; x++) chi[x] = -1;
    for (size_t x = 1; x < q; x++) chi[x * x % q] = 1;
    chi[0] = 0;
}

/* H = I + [[0, 1], [-1, Q]] with Q[i][j] = chi(j - i). */
static void fill_paley1(size_t K, int8_t *out) {
    const size_t q = K - 1;
    int8_t chi[RQ_HADAMARD_K_MAX];
    quadratic_character(q, chi);
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) {
            int8_t h;
            if (i == j)
                h = 1;
            else if (i == 0)
                h = 1;
            else if (j == 0)
                h = -1;
            else
                h = chi[(j + q - i) % q];
            out[i * K + j] = h;
        }
}

/* H = C (x) [[1, 1], [1, -1]] + I (x) [[1, -1], [-1, -1]] with the symmetric conference matrix C = [[0, 1], [1, Q]]. */
static void fill_paley2(size_t K, int8_t *out) {
    static const int8_t off_diagonal[2][2] = {{1, 1}, {1, -1}}, diagonal[2][2] = {{1, -1}, {-1, -1}};
    const size_t q = K / 2 - 1;
    int8_t chi[RQ_HADAMARD_K_MAX];
    quadratic_character(q, chi);
    for (size_t r = 0; r < K; r++)
        for (size_t s = 0; s < K; s++) {
            const size_t i = r / 2, j = s / 2;
            int8_t h;
            if (i == j) {
                h = diagonal[r % 2][s % 2];
            } else {
                const int8_t c = (i == 0 || j == 0) ? 1 : chi[(j + q - i) % q];
                h = (int8_t)(c * off_diagonal[r % 2][s % 2]);
            }
            out[r * K + s] = h;
        }
}

/* [[A, B, C, D], [-B, A, -D, C], [-C, D, A, -B], [-D, -C, B, A]] of four symmetric circulants. */
static void fill_williamson(const williamson_order *w, int8_t *out) {
    static const struct {
        uint8_t circulant;
        int8_t sign;
    } array[4][4] = {
        {{0, 1}, {1, 1}, {2, 1}, {3, 1}},
        {{1, -1}, {0, 1}, {3, -1}, {2, 1}},
        {{2, -1}, {3, 1}, {0, 1}, {1, -1}},
        {{3, -1}, {2, -1}, {1, 1}, {0, 1}},
    };
    const size_t t = w->t, K = 4 * t;
    int8_t first[4][64];
    for (size_t c = 0; c < 4; c++) {
        first[c][0] = 1;
        for (size_t x = 1; x <= t / 2; x++) first[c][x] = first[c][t - x] = w->mask[c] >> (x - 1) & 1 ? -1 : 1;
    }
    for (size_t r = 0; r < K; r++)
        for (size_t s = 0; s < K; s++) {
            const size_t i = r % t, j = s % t;
            const uint8_t c = array[r / t][s / t].circulant;
            out[r * K + s] = (int8_t)(array[r / t][s / t].sign * first[c][(j + t - i) % t]);
        }
}

static void fill_sylvester(size_t K, int8_t *out) {
    for (size_t i = 0; i < K; i++)
        for (size_t j = 0; j < K; j++) out[i * K + j] = __builtin_popcountll(i & j) % 2 ? -1 : 1;
}

/* H_K = H_{K/2} (x) [[1, 1], [1, -1]], in place from the last entry backwards: the four places that entry (i, j) goes
 * to never lie before it, so no entry is overwritten before it is read. */
static void double_in_place(size_t K, int8_t *out) {
    const size_t half = K / 2;
    for (size_t i = half; i-- > 0;)
        for (size_t j = half; j-- > 0;) {
            const int8_t h = out[i * half + j];
            int8_t *upper = out + 2 * i * K + 2 * j, *lower = upper + K;
            lower[0] = h;
            lower[1] = (int8_t)-h;
            upper[1] = h;
            upper[0] = h;
        }
}

bool rq_hadamard_matrix(size_t K, int8_t *out) {
    /* Undo the doublings first, then do them on the way back. */
    unsigned doublings = 0;
    while (rule_of(K) == RULE_DOUBLING) {
        K /= 2;
        doublings++;
    }
    switch (rule_of(K)) {
    case RULE_SYLVESTER:
        fill_sylvester(K, out);
        break;
    case RULE_PALEY1:
        fill_paley1(K, out);
        break;
    case RULE_PALEY2:
        fill_paley2(K, out);
        break;
    case RULE_WILLIAMSON:
        fill_williamson(find_williamson(K / 4), out);
        break;
    case RULE_DOUBLING:
    case RULE_NONE:
        return false;
    }
    while (doublings-- > 0) {
        K *= 2;
        double_in_place(K, out);
    }
    return true;
}

bool rq_hadamard_sha256(const int8_t *hk, size_t K, char hex[65]) {
    const size_t bytes = K * (K + 1);
    char *text = malloc(bytes);
    if (!text) return false;
    char *p = text;
    for (size_t i = 0; i < K; i++) {
        for (size_t j = 0; j < K; j++) *p++ = hk[i * K + j] > 0 ? '+' : '-';
        *p++ = '\n';
    }
    rq_sha256_hex(text, bytes, hex);
    free(text);
    return true;
}
