/* Products and powers modulo m^2 of eight numbers at a time, by the instructions AVX-512 IFMA.

   All of Paillier's moduli are squares. A number x modulo m^2 is two numbers of half its length, x = x_0 + x_1 m, and
   with y = -x_0 y_0 m^-1 mod R, which Montgomery's reduction of x_0 y_0 finds anyway, x_0 y_0 = R z_0 - y m, so

       x y / R = z_0 + m ((x_0 y_1 + x_1 y_0 - y) / R)   modulo m^2,

   where what is in parentheses is only wanted modulo m: two reductions of half the length, half of the work for a
   square and five eighths for a product. A number is kept times R (Montgomery's form).

   Half a number is K digits of 52 bits, R = 2^(52 K). Eight numbers lie together, digit by digit: one vector of eight
   64-bit lanes holds one digit of each (Gueron and Krasnov 2016, "Accelerating big integer arithmetic using Intel IFMA
   extensions"). A row of numbers is groups of eight; what its last group has too many is 0.

   Halves are below 8m and R at least 64m, so results are below 3m without a final subtraction (Walter 1999, "Montgomery
   exponentiation needs no final subtractions"). No branch and no address depends on a number, or on an exponent.

   Compiled for any x86-64; is_available() says whether this processor has the instructions. With FENCHEL_EMULATED the
   same code computes by plain C, for tests on other processors. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one wheel for all versions of Python from 3.11 */
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define DIGIT 52
#define LANES 8
#define MASK ((1ULL << DIGIT) - 1)
#define MOST_DIGITS 320 /* of half a number, 16,640 bits; a digit grows to at most 6 * 320 * 2^52 < 2^64 in a product */
#define SHORTEST_LOOKUP 4
#define LONGEST_WINDOW 8
#define TOGETHER 16 /* groups, whose results stay in a cache beside a row of the table */

#if defined(FENCHEL_EMULATED)

typedef struct {
    uint64_t lane[LANES];
} vector;
typedef uint8_t mask;
#define IFMA
#define INLINE static inline
#define EACH(expression)                                         \
    do {                                                         \
        vector r_;                                               \
        for (int l = 0; l < LANES; l++) r_.lane[l] = (expression); \
        return r_;                                               \
    } while (0)
static unsigned __int128 product52(uint64_t a, uint64_t b) { return (unsigned __int128)(a & MASK) * (b & MASK); }
static vector low(vector c, vector a, vector b) { EACH(c.lane[l] + ((uint64_t)product52(a.lane[l], b.lane[l]) & MASK)); }
static vector high(vector c, vector a, vector b) { EACH(c.lane[l] + (uint64_t)(product52(a.lane[l], b.lane[l]) >> DIGIT)); }
static vector sum(vector a, vector b) { EACH(a.lane[l] + b.lane[l]); }
static vector carried(vector a) { EACH(a.lane[l] >> DIGIT); }
static vector both(vector a, vector b) { EACH(a.lane[l] & b.lane[l]); }
static vector complement(vector a) { EACH(a.lane[l] ^ MASK); }
static vector all(uint64_t x) { EACH(x); }
static vector chosen(mask m, vector a, vector b) { EACH(m >> l & 1 ? b.lane[l] : a.lane[l]); }
static vector sixteenth(const uint64_t *of, vector at) { EACH(of[at.lane[l] & 15]); }
static mask block_is(vector at, uint64_t block) {
    mask m = 0;
    for (int l = 0; l < LANES; l++) m |= (mask)((at.lane[l] >> 4 == block) << l);
    return m;
}
static int processor_can(void) { return 1; }

#elif defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
typedef __m512i vector;
typedef __mmask8 mask;
#define IFMA __attribute__((target("avx512f,avx512ifma")))
#define INLINE IFMA __attribute__((always_inline)) static inline
#define low(c, a, b) _mm512_madd52lo_epu64(c, a, b)
#define high(c, a, b) _mm512_madd52hi_epu64(c, a, b)
#define sum(a, b) _mm512_add_epi64(a, b)
#define carried(a) _mm512_srli_epi64(a, DIGIT)
#define both(a, b) _mm512_and_si512(a, b)
#define complement(a) _mm512_xor_si512(a, all(MASK))
#define all(x) _mm512_set1_epi64((long long)(x))
#define chosen(m, a, b) _mm512_mask_mov_epi64(a, m, b)
#define sixteenth(of, at) _mm512_permutex2var_epi64(_mm512_loadu_si512(of), at, _mm512_loadu_si512((of) + LANES))
#define block_is(at, block) _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(at, 4), all(block))
static int processor_can(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma"); }

#else
#error "only for x86-64, by GCC or Clang"
#endif

/* What products are taken modulo the square of. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t digits;                /* K, even */
    uint64_t inverse;                 /* -m^-1 modulo 2^52 */
    uint64_t m[MOST_DIGITS];
    uint64_t offset[MOST_DIGITS];     /* 1 - R modulo m */
    uint64_t one[2 * MOST_DIGITS];    /* R modulo m^2: 1 in Montgomery's form */
    uint64_t square[2 * MOST_DIGITS]; /* R^2: what takes a number to that form */
    uint64_t cube[2 * MOST_DIGITS];   /* R^3: what takes a number times R to it */
    uint64_t modulus[2 * MOST_DIGITS]; /* m^2, as one number */
} SquareModulus;

/* r = (start + a b + c d) / R modulo m, by two digits of b and d at a time. What is added to make it divisible is y m.

   start, c with d, and y may be NULL, which the compiler sees: it makes one function for each use. r may be any of the
   others. */
INLINE void reduced(vector *r, vector *y, const vector *start, const vector *a, const vector *b, const vector *c,
                    const vector *d, const SquareModulus *by) {
    const Py_ssize_t K = by->digits;
    const vector zero = all(0), digit_mask = all(MASK), inverse = all(by->inverse);
    vector t[MOST_DIGITS];
    for (Py_ssize_t j = 0; j < K; j++) t[j] = start ? start[j] : zero;
    for (Py_ssize_t i = 0; i < K; i += 2) {
        const vector b_0 = b[i], b_1 = b[i + 1], d_0 = c ? d[i] : zero, d_1 = c ? d[i + 1] : zero;
        vector a_0 = a[0], a_1 = a[1], m_0 = all(by->m[0]), m_1 = all(by->m[1]);
        vector c_0 = c ? c[0] : zero, c_1 = c ? c[1] : zero;
        vector u = low(t[0], a_0, b_0), v;
        if (c) u = low(u, c_0, d_0);
        const vector y_0 = low(zero, u, inverse);
        v = carried(low(u, m_0, y_0)); /* of a digit that has become 0 */
        u = high(t[1], a_0, b_0);
        v = high(v, m_0, y_0);
        u = low(u, a_1, b_0);
        v = low(v, m_1, y_0);
        if (c) {
            u = high(u, c_0, d_0);
            v = low(v, c_1, d_0);
            v = low(v, c_0, d_1);
        }
        u = low(u, a_0, b_1);
        u = sum(u, v);
        const vector y_1 = low(zero, u, inverse), carry = carried(low(u, m_0, y_1));
        if (y) {
            y[i] = y_0;
            y[i + 1] = y_1;
        }
        for (Py_ssize_t j = 2; j < K; j++) {
            const vector a_2 = a[j], m_2 = all(by->m[j]), c_2 = c ? c[j] : zero;
            u = high(t[j], a_1, b_0);
            v = high(zero, m_1, y_0);
            u = low(u, a_2, b_0);
            v = low(v, m_2, y_0);
            u = high(u, a_0, b_1);
            v = high(v, m_0, y_1);
            u = low(u, a_1, b_1);
            v = low(v, m_1, y_1);
            if (c) {
                u = high(u, c_1, d_0);
                v = low(v, c_2, d_0);
                u = high(u, c_0, d_1);
                v = low(v, c_1, d_1);
            }
            t[j - 2] = sum(u, v);
            a_0 = a_1;
            a_1 = a_2;
            m_0 = m_1;
            m_1 = m_2;
            c_0 = c_1;
            c_1 = c_2;
        }
        u = high(zero, a_1, b_0);
        v = high(zero, m_1, y_0);
        u = high(u, a_0, b_1);
        v = high(v, m_0, y_1);
        u = low(u, a_1, b_1);
        v = low(v, m_1, y_1);
        if (c) {
            u = high(u, c_1, d_0);
            v = high(v, c_0, d_1);
            u = low(u, c_1, d_1);
        }
        t[K - 2] = sum(u, v);
        u = high(zero, a_1, b_1);
        if (c) u = high(u, c_1, d_1);
        t[K - 1] = high(u, m_1, y_1);
        t[0] = sum(t[0], carry);
    }
    vector carry = zero;
    for (Py_ssize_t j = 0; j < K; j++) {
        const vector digit = sum(t[j], carry);
        r[j] = both(digit, digit_mask);
        carry = carried(digit);
    }
}

/* r = -y modulo m, plus a multiple of m: R - 1 - y and 1 - R. */
INLINE void negative(vector *r, const vector *y, const SquareModulus *by) {
    for (Py_ssize_t j = 0; j < by->digits; j++) r[j] = sum(complement(y[j]), all(by->offset[j]));
}

/* r = a b / R modulo m^2. r may be a or b. */
IFMA static void product(vector *r, const vector *a, const vector *b, const SquareModulus *by) {
    const Py_ssize_t K = by->digits;
    vector y[MOST_DIGITS], first[MOST_DIGITS];
    reduced(first, y, NULL, a, b, NULL, NULL, by);
    negative(y, y, by);
    reduced(r + K, NULL, y, a, b + K, a + K, b, by);
    memcpy(r, first, (size_t)K * sizeof *r);
}

/* r = a^2 / R modulo m^2. r may be a. */
IFMA static void squared(vector *r, const vector *a, const SquareModulus *by) {
    const Py_ssize_t K = by->digits;
    vector y[MOST_DIGITS], first[MOST_DIGITS], twice[MOST_DIGITS], carry = all(0);
    reduced(first, y, NULL, a, a, NULL, NULL, by);
    negative(y, y, by);
    for (Py_ssize_t j = 0; j < K; j++) {
        const vector digit = sum(sum(a[K + j], a[K + j]), carry);
        twice[j] = both(digit, all(MASK));
        carry = carried(digit);
    }
    reduced(r + K, NULL, y, twice, a, NULL, NULL, by);
    memcpy(r, first, (size_t)K * sizeof *r);
}

IFMA static void spread(vector *r, const uint64_t *number, Py_ssize_t digits) {
    for (Py_ssize_t j = 0; j < digits; j++) r[j] = all(number[j]);
}

/* r = a^e for a group; windows: digits of e of some bits each, the highest first; table: of 2^bits groups. */
IFMA static void power(vector *r, const vector *a, const uint8_t *windows, Py_ssize_t count, int bits, vector *table,
                       const SquareModulus *by) {
    const Py_ssize_t size = 2 * by->digits;
    const unsigned entries = 1u << bits;
    vector entry[2 * MOST_DIGITS];
    spread(table, by->one, size);
    for (unsigned e = 1; e < entries; e++) product(table + e * size, table + (e - 1) * size, a, by);
    spread(r, by->one, size);
    for (Py_ssize_t i = 0; i < count; i++) {
        for (int square = 0; square < bits && i > 0; square++) squared(r, r, by);
        for (unsigned e = 0; e < entries; e++) { /* all of the table is read, whatever the digit is */
            const mask here = (mask)(0 - (((uint64_t)(e ^ windows[i]) - 1) >> 63));
            for (Py_ssize_t j = 0; j < size; j++) entry[j] = chosen(here, entry[j], table[e * size + j]);
        }
        product(r, r, entry, by);
    }
}

/* results = for each group the product of one entry of each row of a table of one number's powers, by the digits of
   eight exponents. Row by row, as the table is larger than a cache.

   table: rows of 2 K digits of 2^bits numbers each, digit by digit; windows: for each group and row the digit of each
   lane's exponent. */
IFMA static void fixed_powers(vector *results, Py_ssize_t groups, const uint64_t *table, Py_ssize_t rows, int bits,
                              const uint8_t *windows, const SquareModulus *by) {
    const Py_ssize_t size = 2 * by->digits;
    const unsigned blocks = 1u << (bits - SHORTEST_LOOKUP);
    vector entry[2 * MOST_DIGITS];
    for (Py_ssize_t g = 0; g < groups; g++) spread(results + g * size, by->one, size);
    for (Py_ssize_t row = 0; row < rows; row++, table += size << bits) {
        for (Py_ssize_t g = 0; g < groups; g++) {
            mask here[1u << (LONGEST_WINDOW - SHORTEST_LOOKUP)];
            uint64_t lanes[LANES];
            vector at;
            for (int l = 0; l < LANES; l++) lanes[l] = windows[(g * rows + row) * LANES + l];
            memcpy(&at, lanes, sizeof lanes);
            for (unsigned block = 0; block < blocks; block++) here[block] = block_is(at, block);
            for (Py_ssize_t j = 0; j < size; j++) { /* all of the row is read, whatever the digits are */
                const uint64_t *entries = table + (j << bits);
                vector found = sixteenth(entries, at);
                for (unsigned block = 1; block < blocks; block++)
                    found = chosen(here[block], found, sixteenth(entries + 16 * block, at));
                entry[j] = found;
            }
            product(results + g * size, results + g * size, entry, by);
        }
    }
}

/* Eight bytes of a big-endian number, the lowest of them `byte` bytes above its last; 0 beyond its first. */
static uint64_t eight_bytes(const uint8_t *number, Py_ssize_t width, Py_ssize_t byte) {
    uint64_t found = 0;
    if (byte + 8 <= width) {
        memcpy(&found, number + width - byte - 8, 8);
        return __builtin_bswap64(found);
    }
    for (Py_ssize_t place = 0; byte < width; place++, byte++) found |= (uint64_t)number[width - 1 - byte] << (8 * place);
    return found;
}

/* Digit j of a big-endian number. */
static uint64_t digit_of(const uint8_t *number, Py_ssize_t width, Py_ssize_t j) {
    return (eight_bytes(number, width, DIGIT * j / 8) >> (DIGIT * j % 8)) & MASK;
}

/* Write a number below 256^width, big-endian. */
static void to_big_endian(uint8_t *number, Py_ssize_t width, const uint64_t *digits, Py_ssize_t count) {
    unsigned __int128 rest = 0;
    int bits = 0;
    for (Py_ssize_t end = width, j = 0; end > 0; end -= 8) {
        while (bits < 64 && j < count) {
            rest |= (unsigned __int128)digits[j++] << bits;
            bits += DIGIT;
        }
        const uint64_t eight = __builtin_bswap64((uint64_t)rest);
        if (end >= 8) memcpy(number + end - 8, &eight, 8);
        else memcpy(number, (const uint8_t *)&eight + 8 - end, (size_t)end);
        rest >>= 64;
        bits -= 64;
    }
}

/* Digits minus those of m^2 if these are not more. */
static void subtract_modulus(uint64_t *digits, const SquareModulus *by) {
    uint64_t less[2 * MOST_DIGITS], borrow = 0;
    for (Py_ssize_t j = 0; j < 2 * by->digits; j++) {
        const uint64_t apart = digits[j] - by->modulus[j] - borrow;
        less[j] = apart & MASK;
        borrow = apart >> 63;
    }
    const uint64_t keep = 0 - borrow;
    for (Py_ssize_t j = 0; j < 2 * by->digits; j++) digits[j] = (digits[j] & keep) | (less[j] & ~keep);
}

/* Take eight numbers below m^2, big-endian, to Montgomery's form; only `count` of them are there. */
IFMA static void read_group(vector *r, const uint8_t *data, Py_ssize_t width, Py_ssize_t count, const SquareModulus *by) {
    const Py_ssize_t K = by->digits;
    vector halves[2][2 * MOST_DIGITS], constant[2 * MOST_DIGITS]; /* x = x_low + x_high R */
    memset(halves, 0, sizeof halves);
    for (Py_ssize_t j = 0; j < 2 * K; j++) {
        uint64_t lanes[LANES] = {0};
        for (Py_ssize_t l = 0; l < count; l++) lanes[l] = digit_of(data + l * width, width, j);
        memcpy(&halves[j / K][j % K], lanes, sizeof lanes);
    }
    spread(constant, by->square, 2 * K);
    product(r, halves[0], constant, by);
    spread(constant, by->cube, 2 * K);
    product(halves[1], halves[1], constant, by);
    for (Py_ssize_t half = 0; half < 2; half++) { /* each below 2m + 2 */
        vector carry = all(0);
        for (Py_ssize_t j = half * K; j < half * K + K; j++) {
            const vector digit = sum(sum(r[j], halves[1][j]), carry);
            r[j] = both(digit, all(MASK));
            carry = carried(digit);
        }
    }
}

/* Write eight numbers below m^2, big-endian; only `count` of them are wanted. */
IFMA static void write_group(uint8_t *data, Py_ssize_t width, Py_ssize_t count, const vector *a, const SquareModulus *by) {
    const Py_ssize_t K = by->digits;
    vector unit[2 * MOST_DIGITS], number[2 * MOST_DIGITS], whole[2 * MOST_DIGITS + 1], carry = all(0);
    for (Py_ssize_t j = 0; j < 2 * K; j++) unit[j] = all(j == 0);
    product(number, a, unit, by); /* x_0 is at most m, x_1 at most m + 1 */
    for (Py_ssize_t j = 0; j <= 2 * K; j++) whole[j] = j < K ? number[j] : all(0);
    for (Py_ssize_t i = 0; i < K; i++) {
        for (Py_ssize_t j = 0; j < K; j++) {
            whole[i + j] = low(whole[i + j], number[K + i], all(by->m[j]));
            whole[i + j + 1] = high(whole[i + j + 1], number[K + i], all(by->m[j]));
        }
    }
    for (Py_ssize_t j = 0; j < 2 * K; j++) {
        const vector digit = sum(whole[j], carry);
        whole[j] = both(digit, all(MASK));
        carry = carried(digit);
    }
    for (Py_ssize_t l = 0; l < count; l++) {
        uint64_t digits[2 * MOST_DIGITS];
        for (Py_ssize_t j = 0; j < 2 * K; j++) memcpy(&digits[j], (const char *)&whole[j] + 8 * l, 8);
        subtract_modulus(digits, by);
        to_big_endian(data + l * width, width, digits, 2 * K);
    }
}

/* The interface to Python. Rows are bytes: groups * 2 K * 8 integers of 64 bits. */

static Py_ssize_t bytes_of_group(const SquareModulus *self) { return 2 * self->digits * (Py_ssize_t)sizeof(vector); }

/* Memory for vectors, to be freed by PyMem_Free, or NULL with an error; memory_of() is where they begin. */
static void *aligned(Py_ssize_t bytes) {
    void *memory = PyMem_Malloc((size_t)bytes + sizeof(vector));
    return memory ? memory : PyErr_NoMemory();
}

static vector *memory_of(void *memory) {
    return (vector *)(((uintptr_t)memory + sizeof(vector) - 1) & ~(uintptr_t)(sizeof(vector) - 1));
}

/* The number of groups in a row, or -1 with an error. */
static Py_ssize_t groups_of(const SquareModulus *self, const Py_buffer *row) {
    if (row->len % bytes_of_group(self) != 0) {
        PyErr_SetString(PyExc_ValueError, "a row holds whole groups of eight numbers");
        return -1;
    }
    return row->len / bytes_of_group(self);
}

static PyObject *SquareModulus_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    static char *known[] = {"digits", "constants", NULL};
    Py_buffer constants; /* eight numbers of equal width: m, offset, one, square and cube by halves */
    Py_ssize_t digits;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "ny*", known, &digits, &constants)) return NULL;
    const Py_ssize_t width = constants.len / 8;
    const int fit = digits >= 2 && digits <= MOST_DIGITS && digits % 2 == 0 && width * 8 < digits * DIGIT + 8;
    if (!fit || constants.len % 8 != 0 || width == 0) {
        PyErr_Format(PyExc_ValueError, "%zd digits; an even number from 2 to %d is possible, for eight constants of no "
                     "more", digits, MOST_DIGITS);
        PyBuffer_Release(&constants);
        return NULL;
    }
    SquareModulus *self = (SquareModulus *)PyType_GenericAlloc(type, 0);
    if (self == NULL) {
        PyBuffer_Release(&constants);
        return NULL;
    }
    uint64_t *const places[] = {self->m, self->offset, self->one, self->one + digits, self->square,
                                self->square + digits, self->cube, self->cube + digits};
    for (int which = 0; which < 8; which++)
        for (Py_ssize_t j = 0; j < digits; j++)
            places[which][j] = digit_of((const uint8_t *)constants.buf + which * width, width, j);
    PyBuffer_Release(&constants);
    self->digits = digits;
    uint64_t inverse = 1; /* of m modulo 2^64: each step doubles the bits that are right */
    for (int step = 0; step < 6; step++) inverse *= 2 - self->m[0] * inverse;
    self->inverse = (0 - inverse) & MASK;
    memset(self->modulus, 0, sizeof self->modulus);
    for (Py_ssize_t i = 0; i < digits; i++) {
        uint64_t carry = 0;
        for (Py_ssize_t j = 0; j < digits; j++) {
            const unsigned __int128 found = (unsigned __int128)self->m[i] * self->m[j] + self->modulus[i + j] + carry;
            self->modulus[i + j] = (uint64_t)found & MASK;
            carry = (uint64_t)(found >> DIGIT);
        }
        self->modulus[i + digits] = carry;
    }
    return (PyObject *)self;
}

/* Numbers below m^2, big-endian and of equal width, to a row. */
static PyObject *SquareModulus_read(SquareModulus *self, PyObject *arguments) {
    Py_buffer data;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(arguments, "y*n", &data, &width)) return NULL;
    PyObject *made = NULL;
    if (width < 1 || data.len % width != 0) {
        PyErr_SetString(PyExc_ValueError, "the data hold whole numbers of one width");
    } else {
        const Py_ssize_t count = data.len / width, groups = (count + LANES - 1) / LANES, size = bytes_of_group(self);
        made = PyBytes_FromStringAndSize(NULL, groups * size);
        if (made) {
            char *row = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector group[2 * MOST_DIGITS];
            for (Py_ssize_t g = 0; g < groups; g++) {
                const Py_ssize_t rest = count - g * LANES;
                read_group(group, (const uint8_t *)data.buf + g * LANES * width, width, rest < LANES ? rest : LANES, self);
                memcpy(row + g * size, group, (size_t)size);
            }
            Py_END_ALLOW_THREADS;
        }
    }
    PyBuffer_Release(&data);
    return made;
}

/* The first numbers of a row, big-endian and of equal width, below m^2. */
static PyObject *SquareModulus_write(SquareModulus *self, PyObject *arguments) {
    Py_buffer row;
    Py_ssize_t count, width;
    if (!PyArg_ParseTuple(arguments, "y*nn", &row, &count, &width)) return NULL;
    PyObject *made = NULL;
    const Py_ssize_t groups = groups_of(self, &row), size = bytes_of_group(self);
    if (groups >= 0 && (count < 0 || count > groups * LANES || width < 1)) {
        PyErr_SetString(PyExc_ValueError, "the row has not so many numbers");
    } else if (groups >= 0 && (made = PyBytes_FromStringAndSize(NULL, count * width)) != NULL) {
        uint8_t *data = (uint8_t *)PyBytes_AsString(made);
        Py_BEGIN_ALLOW_THREADS;
        vector group[2 * MOST_DIGITS];
        for (Py_ssize_t done = 0; done < count; done += LANES) {
            memcpy(group, (const char *)row.buf + done / LANES * size, (size_t)size);
            write_group(data + done * width, width, count - done < LANES ? count - done : LANES, group, self);
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&row);
    return made;
}

/* The products of two rows, number by number. */
static PyObject *SquareModulus_products(SquareModulus *self, PyObject *arguments) {
    Py_buffer a, b;
    if (!PyArg_ParseTuple(arguments, "y*y*", &a, &b)) return NULL;
    PyObject *made = NULL;
    const Py_ssize_t groups = groups_of(self, &a), size = bytes_of_group(self);
    if (groups >= 0 && a.len != b.len) {
        PyErr_SetString(PyExc_ValueError, "the rows have different lengths");
    } else if (groups >= 0 && (made = PyBytes_FromStringAndSize(NULL, a.len)) != NULL) {
        char *row = PyBytes_AsString(made);
        Py_BEGIN_ALLOW_THREADS;
        vector first[2 * MOST_DIGITS], second[2 * MOST_DIGITS];
        for (Py_ssize_t g = 0; g < groups; g++) {
            memcpy(first, (const char *)a.buf + g * size, (size_t)size);
            memcpy(second, (const char *)b.buf + g * size, (size_t)size);
            product(first, first, second, self);
            memcpy(row + g * size, first, (size_t)size);
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    return made;
}

/* Powers of a row: all of one exponent, given by its digits of some bits each, the highest first. */
static PyObject *SquareModulus_powers(SquareModulus *self, PyObject *arguments) {
    Py_buffer a, windows;
    int bits;
    if (!PyArg_ParseTuple(arguments, "y*y*i", &a, &windows, &bits)) return NULL;
    PyObject *made = NULL;
    const Py_ssize_t groups = groups_of(self, &a), size = bytes_of_group(self);
    if (groups >= 0 && (bits < 1 || bits > 8)) {
        PyErr_SetString(PyExc_ValueError, "a window has 1 to 8 bits");
    } else if (groups >= 0 && (made = PyBytes_FromStringAndSize(NULL, a.len)) != NULL) {
        char *row = PyBytes_AsString(made);
        void *memory = aligned(size << bits);
        if (memory == NULL) {
            Py_CLEAR(made);
        } else {
            vector *table = memory_of(memory);
            Py_BEGIN_ALLOW_THREADS;
            vector base[2 * MOST_DIGITS], result[2 * MOST_DIGITS];
            for (Py_ssize_t g = 0; g < groups; g++) {
                memcpy(base, (const char *)a.buf + g * size, (size_t)size);
                power(result, base, windows.buf, windows.len, bits, table, self);
                memcpy(row + g * size, result, (size_t)size);
            }
            Py_END_ALLOW_THREADS;
            PyMem_Free(memory);
        }
    }
    PyBuffer_Release(&a);
    PyBuffer_Release(&windows);
    return made;
}

/* The table of a number's powers, digit by digit: in row i entry e is base^(e 2^(bits i)). The base is the first number
   of a row. */
static PyObject *SquareModulus_table(SquareModulus *self, PyObject *arguments) {
    Py_buffer base;
    Py_ssize_t rows;
    int bits;
    if (!PyArg_ParseTuple(arguments, "y*ni", &base, &rows, &bits)) return NULL;
    PyObject *made = NULL;
    const Py_ssize_t groups = groups_of(self, &base), size = bytes_of_group(self), digits = 2 * self->digits;
    if (groups == 0 || (groups > 0 && (bits < SHORTEST_LOOKUP || bits > LONGEST_WINDOW || rows < 0))) {
        PyErr_Format(PyExc_ValueError, "a table has a base, and windows of %d to %d bits", SHORTEST_LOOKUP, LONGEST_WINDOW);
    } else if (groups > 0 && (made = PyBytes_FromStringAndSize(NULL, (rows * digits * 8) << bits)) != NULL) {
        char *table = PyBytes_AsString(made);
        Py_BEGIN_ALLOW_THREADS;
        vector step[2 * MOST_DIGITS], reached[2 * MOST_DIGITS];
        memcpy(step, base.buf, (size_t)size);
        for (Py_ssize_t row = 0; row < rows; row++, table += (digits * 8) << bits) {
            spread(reached, self->one, digits);
            for (Py_ssize_t e = 0; e < 1 << bits; e++) {
                for (Py_ssize_t j = 0; j < digits; j++) memcpy(table + (((j << bits) + e) * 8), &reached[j], 8);
                product(reached, reached, step, self);
            }
            memcpy(step, reached, (size_t)size);
        }
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&base);
    return made;
}

/* Powers of a table's base, for exponents by groups of eight: digit i of each of the eight, then digit i + 1. */
static PyObject *SquareModulus_fixed_powers(SquareModulus *self, PyObject *arguments) {
    Py_buffer table, windows;
    int bits;
    if (!PyArg_ParseTuple(arguments, "y*y*i", &table, &windows, &bits)) return NULL;
    PyObject *made = NULL;
    const Py_ssize_t size = bytes_of_group(self);
    const Py_ssize_t bytes_of_row = bits < SHORTEST_LOOKUP || bits > LONGEST_WINDOW ? 0 : (2 * self->digits * 8) << bits;
    const Py_ssize_t rows = bytes_of_row ? table.len / bytes_of_row : 0;
    if (rows == 0 || table.len != rows * bytes_of_row || windows.len % (rows * LANES) != 0) {
        PyErr_SetString(PyExc_ValueError, "the digits of exponents and the table do not fit each other");
    } else {
        const Py_ssize_t groups = windows.len / (rows * LANES);
        void *memory = aligned(groups * size);
        if (memory && (made = PyBytes_FromStringAndSize(NULL, groups * size)) != NULL) {
            char *row = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *results = memory_of(memory);
            for (Py_ssize_t g = 0; g < groups; g += TOGETHER)
                fixed_powers(results + g * 2 * self->digits, groups - g < TOGETHER ? groups - g : TOGETHER, table.buf,
                             rows, bits, (const uint8_t *)windows.buf + g * rows * LANES, self);
            memcpy(row, results, (size_t)(groups * size));
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&table);
    PyBuffer_Release(&windows);
    return made;
}

static PyMethodDef SquareModulus_methods[] = {
    {"read", (PyCFunction)SquareModulus_read, METH_VARARGS, NULL},
    {"write", (PyCFunction)SquareModulus_write, METH_VARARGS, NULL},
    {"products", (PyCFunction)SquareModulus_products, METH_VARARGS, NULL},
    {"powers", (PyCFunction)SquareModulus_powers, METH_VARARGS, NULL},
    {"table", (PyCFunction)SquareModulus_table, METH_VARARGS, NULL},
    {"fixed_powers", (PyCFunction)SquareModulus_fixed_powers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SquareModulus_slots[] = {
    {Py_tp_new, SquareModulus_new},
    {Py_tp_methods, SquareModulus_methods},
    {0, NULL},
};

static PyType_Spec SquareModulus_spec = {
    .name = "fenchel.common.crypto.residues._ifma.SquareModulus",
    .basicsize = sizeof(SquareModulus),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = SquareModulus_slots,
};

static PyObject *is_available(PyObject *module, PyObject *nothing) { return PyBool_FromLong(processor_can()); }

static PyMethodDef functions[] = {
    {"is_available", is_available, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_ifma",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__ifma(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module ? PyType_FromSpec(&SquareModulus_spec) : NULL;
    if (module && (type == NULL || PyModule_AddObjectRef(module, "SquareModulus", type) < 0)) Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
