/* Products and powers modulo m^2 of eight numbers at a time, by the instructions AVX-512 IFMA.

   All of Paillier's moduli are squares. A number x modulo m^2 is two numbers of half its length, x = x_0 + x_1 m, and
   with y = -x_0 y_0 m^-1 mod R, which Montgomery's reduction of x_0 y_0 finds anyway, x_0 y_0 = R z_0 - y m, so

       x y / R = z_0 + m ((x_0 y_1 + x_1 y_0 - y) / R)   modulo m^2,

   where what is in parentheses is only wanted modulo m: two reductions of half the length, half of the work for a
   square and five eighths for a product. A number is kept times R (Montgomery's form).

   Half a number is K digits of 52 bits, R = 2^(52 K). Eight numbers lie together, digit by digit: one vector of eight
   64-bit lanes holds one digit of each (Gueron and Krasnov 2016, "Accelerating big integer arithmetic using Intel IFMA
   extensions"). Each lane has a modulus of its own. A row of numbers is groups of eight; unused lanes of the last group
   hold a multiple of m^2.

   Halves are below 8m and R is at least 64m, so results are below 3m without a final subtraction (Walter 1999,
   "Montgomery exponentiation needs no final subtractions"). No branch and no address depends on a number, or on an
   exponent.

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
#define MOST_PIECES 4   /* of K digits that are read as one number: each becomes less than 2m, and their sum 8m */
#define SHORTEST_TABLE_WINDOW 4
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
#define PRODUCT(a, b) ((unsigned __int128)((a) & MASK) * ((b) & MASK))
static vector add_low(vector c, vector a, vector b) { EACH(c.lane[l] + ((uint64_t)PRODUCT(a.lane[l], b.lane[l]) & MASK)); }
static vector add_high(vector c, vector a, vector b) { EACH(c.lane[l] + (uint64_t)(PRODUCT(a.lane[l], b.lane[l]) >> DIGIT)); }
static vector add(vector a, vector b) { EACH(a.lane[l] + b.lane[l]); }
static vector above_digit(vector a) { EACH(a.lane[l] >> DIGIT); }
static vector digit_of(vector a) { EACH(a.lane[l] & MASK); }
static vector complement(vector a) { EACH(a.lane[l] ^ MASK); }
static vector broadcast(uint64_t x) { EACH(x); }
static vector blend(mask m, vector a, vector b) { EACH(m >> l & 1 ? b.lane[l] : a.lane[l]); }
static vector one_of_sixteen(const uint64_t *of, vector at) { EACH(of[at.lane[l] & 15]); }
static mask equal(vector a, uint64_t b) {
    mask m = 0;
    for (int l = 0; l < LANES; l++) m |= (mask)((a.lane[l] == b) << l);
    return m;
}
static mask sixteens_equal(vector a, uint64_t b) {
    for (int l = 0; l < LANES; l++) a.lane[l] >>= 4;
    return equal(a, b);
}
static int processor_can(void) { return 1; }

#elif defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
typedef __m512i vector;
typedef __mmask8 mask;
#define IFMA __attribute__((target("avx512f,avx512ifma")))
#define INLINE IFMA __attribute__((always_inline)) static inline
#define add_low(c, a, b) _mm512_madd52lo_epu64(c, a, b)
#define add_high(c, a, b) _mm512_madd52hi_epu64(c, a, b)
#define add(a, b) _mm512_add_epi64(a, b)
#define above_digit(a) _mm512_srli_epi64(a, DIGIT)
#define digit_of(a) _mm512_and_si512(a, broadcast(MASK))
#define complement(a) _mm512_xor_si512(a, broadcast(MASK))
#define broadcast(x) _mm512_set1_epi64((long long)(x))
#define blend(m, a, b) _mm512_mask_mov_epi64(a, m, b)
#define one_of_sixteen(of, at) _mm512_permutex2var_epi64(_mm512_loadu_si512(of), at, _mm512_loadu_si512((of) + LANES))
#define equal(a, b) _mm512_cmpeq_epi64_mask(a, broadcast(b))
#define sixteens_equal(a, b) _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(a, 4), broadcast(b))
static int processor_can(void) { return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma"); }

#else
#error "only for x86-64, by GCC or Clang"
#endif

/* The modulus m^2 of each lane, and constants. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t digits;     /* K, even */
    Py_ssize_t span;       /* vectors from one array of up to 2K to the next */
    void *memory;          /* where the arrays of vectors lie */
    const vector *m;       /* K */
    const vector *offset;  /* K; 1 - R modulo m */
    const vector *one;     /* 2K; R: 1 in Montgomery's form */
    const vector *square;  /* 2K; R^2: what takes a number to that form */
    const vector *modulus; /* 2K; m^2, as one number */
    const vector *inverse; /* 1; -m^-1 modulo 2^52 */
} SquareModuli;

/* r = (start + a b + c d) / R modulo m, by two digits of b and d at a time. What is added to make it divisible is y m.

   start, c with d, and y may be NULL, which the compiler sees: it makes one function for each use. r may be any of the
   others. t: K vectors to work with.

   All arrays begin at addresses that are equal modulo 4096. So what is loaded runs ahead of what is stored, and no load
   waits for a store that only seems to be of the same address. */
INLINE void reduced(vector *r, vector *y, const vector *start, const vector *a, const vector *b, const vector *c,
                    const vector *d, const SquareModuli *by, vector *restrict t) {
    const Py_ssize_t K = by->digits;
    const vector *m = by->m, zero = broadcast(0), inverse = *by->inverse;
    for (Py_ssize_t j = 0; j < K; j++) t[j] = start ? start[j] : zero;
    for (Py_ssize_t i = 0; i < K; i += 2) {
        const vector b_0 = b[i], b_1 = b[i + 1], d_0 = c ? d[i] : zero, d_1 = c ? d[i + 1] : zero;
        vector a_0 = a[0], a_1 = a[1], m_0 = m[0], m_1 = m[1], c_0 = c ? c[0] : zero, c_1 = c ? c[1] : zero;
        vector u = add_low(t[0], a_0, b_0), v;
        if (c) u = add_low(u, c_0, d_0);
        const vector y_0 = add_low(zero, u, inverse);
        v = above_digit(add_low(u, m_0, y_0)); /* the digit itself has become 0 */
        u = add_high(t[1], a_0, b_0);
        v = add_high(v, m_0, y_0);
        u = add_low(u, a_1, b_0);
        v = add_low(v, m_1, y_0);
        if (c) {
            u = add_high(u, c_0, d_0);
            v = add_low(v, c_1, d_0);
            v = add_low(v, c_0, d_1);
        }
        u = add_low(u, a_0, b_1);
        u = add(u, v);
        const vector y_1 = add_low(zero, u, inverse), carry = above_digit(add_low(u, m_0, y_1));
        if (y) {
            y[i] = y_0;
            y[i + 1] = y_1;
        }
        for (Py_ssize_t j = 2; j < K; j++) {
            const vector a_2 = a[j], m_2 = m[j], c_2 = c ? c[j] : zero;
            u = add_high(t[j], a_1, b_0);
            v = add_high(zero, m_1, y_0);
            u = add_low(u, a_2, b_0);
            v = add_low(v, m_2, y_0);
            u = add_high(u, a_0, b_1);
            v = add_high(v, m_0, y_1);
            u = add_low(u, a_1, b_1);
            v = add_low(v, m_1, y_1);
            if (c) {
                u = add_high(u, c_1, d_0);
                v = add_low(v, c_2, d_0);
                u = add_high(u, c_0, d_1);
                v = add_low(v, c_1, d_1);
            }
            t[j - 2] = add(u, v);
            a_0 = a_1;
            a_1 = a_2;
            m_0 = m_1;
            m_1 = m_2;
            c_0 = c_1;
            c_1 = c_2;
        }
        u = add_high(zero, a_1, b_0);
        v = add_high(zero, m_1, y_0);
        u = add_high(u, a_0, b_1);
        v = add_high(v, m_0, y_1);
        u = add_low(u, a_1, b_1);
        v = add_low(v, m_1, y_1);
        if (c) {
            u = add_high(u, c_1, d_0);
            v = add_high(v, c_0, d_1);
            u = add_low(u, c_1, d_1);
        }
        t[K - 2] = add(u, v);
        u = add_high(zero, a_1, b_1);
        if (c) u = add_high(u, c_1, d_1);
        t[K - 1] = add_high(u, m_1, y_1);
        t[0] = add(t[0], carry);
    }
    vector carry = zero;
    for (Py_ssize_t j = 0; j < K; j++) {
        const vector sum = add(t[j], carry);
        r[j] = digit_of(sum);
        carry = above_digit(sum);
    }
}

/* r = -y modulo m, plus a multiple of m: R - 1 - y and 1 - R. r may be y. */
INLINE void negative(vector *r, const vector *y, const SquareModuli *by) {
    for (Py_ssize_t j = 0; j < by->digits; j++) r[j] = add(complement(y[j]), by->offset[j]);
}

/* r = a + b for numbers of some digits, below 2^(52 digits). r may be a or b. */
INLINE void sum_of(vector *r, const vector *a, const vector *b, Py_ssize_t digits) {
    vector carry = broadcast(0);
    for (Py_ssize_t j = 0; j < digits; j++) {
        const vector sum = add(add(a[j], b[j]), carry);
        r[j] = digit_of(sum);
        carry = above_digit(sum);
    }
}

#define WORK_OF_PRODUCT 4 /* spans to work with, of a product or a square */

/* r = a b / R modulo m^2. r may be a or b. */
IFMA static void product(vector *r, const vector *a, const vector *b, const SquareModuli *by, vector *work) {
    const Py_ssize_t K = by->digits;
    vector *t = work, *y = t + by->span, *first = y + by->span;
    reduced(first, y, NULL, a, b, NULL, NULL, by, t);
    negative(y, y, by);
    reduced(r + K, NULL, y, a, b + K, a + K, b, by, t);
    memcpy(r, first, (size_t)K * sizeof *r);
}

/* r = a^2 / R modulo m^2. r may be a. */
IFMA static void squared(vector *r, const vector *a, const SquareModuli *by, vector *work) {
    const Py_ssize_t K = by->digits;
    vector *t = work, *y = t + by->span, *first = y + by->span, *twice = first + by->span;
    reduced(first, y, NULL, a, a, NULL, NULL, by, t);
    negative(y, y, by);
    sum_of(twice, a + K, a + K, K);
    reduced(r + K, NULL, y, twice, a, NULL, NULL, by, t);
    memcpy(r, first, (size_t)K * sizeof *r);
}

/* Eight digits of exponents, one for each lane. */
INLINE vector digits_of(const uint8_t *windows) {
    uint64_t lanes[LANES];
    vector digits;
    for (int l = 0; l < LANES; l++) lanes[l] = windows[l];
    memcpy(&digits, lanes, sizeof lanes);
    return digits;
}

/* r = a^e for a group; windows: digits of each lane's e, of some bits each, the highest first.

   work: WORK_OF_PRODUCT + 1 spans, and 2^bits groups. */
IFMA static void power(vector *r, const vector *a, const uint8_t *windows, Py_ssize_t count, int bits,
                       const SquareModuli *by, vector *work) {
    const Py_ssize_t size = 2 * by->digits;
    const unsigned entries = 1u << bits;
    vector *entry = work + WORK_OF_PRODUCT * by->span, *table = entry + by->span;
    memcpy(table, by->one, (size_t)size * sizeof *table);
    for (unsigned e = 1; e < entries; e++) product(table + e * size, table + (e - 1) * size, a, by, work);
    memcpy(r, by->one, (size_t)size * sizeof *r);
    for (Py_ssize_t i = 0; i < count; i++) {
        for (int square = 0; square < bits && i > 0; square++) squared(r, r, by, work);
        const vector digits = digits_of(windows + i * LANES);
        memcpy(entry, table, (size_t)size * sizeof *entry);
        for (unsigned e = 1; e < entries; e++) { /* all of the table is read, whatever the digits are */
            const mask here = equal(digits, e);
            for (Py_ssize_t j = 0; j < size; j++) entry[j] = blend(here, entry[j], table[e * size + j]);
        }
        product(r, r, entry, by, work);
    }
}

/* found = one of 2^bits numbers by the digits of each lane. All are read, whatever the digits are. */
INLINE vector looked_up(const uint64_t *numbers, int bits, vector digits, const mask *sixteens) {
    vector found = one_of_sixteen(numbers, digits);
    for (int block = 1; block < 1 << (bits - SHORTEST_TABLE_WINDOW); block++)
        found = blend(sixteens[block], found, one_of_sixteen(numbers + 16 * block, digits));
    return found;
}

/* results = for each group the product of one entry of each row of a table of powers, by the digits of its exponents.
   Row by row, as tables are larger than a cache.

   table: rows of 2K digits of 2^bits powers of the base of the first lanes, digit by digit, and then of the base of the
   other lanes; windows: for each group and row the digit of each lane's exponent.
   work: WORK_OF_PRODUCT + 2 spans. */
IFMA static void fixed_powers(vector *results, Py_ssize_t groups, const uint64_t *table, Py_ssize_t rows, int bits,
                              const uint8_t *windows, const SquareModuli *by, vector *work) {
    const Py_ssize_t size = 2 * by->digits;
    const mask other_lanes = 0xF0;
    vector *entry = work + WORK_OF_PRODUCT * by->span, *result = entry + by->span;
    for (Py_ssize_t g = 0; g < groups; g++) memcpy(results + g * size, by->one, (size_t)size * sizeof *results);
    for (Py_ssize_t row = 0; row < rows; row++, table += 2 * size << bits) {
        const uint64_t *other = table + (size << bits);
        for (Py_ssize_t g = 0; g < groups; g++) {
            const vector digits = digits_of(windows + (g * rows + row) * LANES);
            mask sixteens[1u << (LONGEST_WINDOW - SHORTEST_TABLE_WINDOW)];
            for (int block = 0; block < 1 << (bits - SHORTEST_TABLE_WINDOW); block++)
                sixteens[block] = sixteens_equal(digits, block);
            for (Py_ssize_t j = 0; j < size; j++)
                entry[j] = blend(other_lanes, looked_up(table + (j << bits), bits, digits, sixteens),
                                 looked_up(other + (j << bits), bits, digits, sixteens));
            memcpy(result, results + g * size, (size_t)size * sizeof *result);
            product(result, result, entry, by, work);
            memcpy(results + g * size, result, (size_t)size * sizeof *result);
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
static uint64_t read_digit(const uint8_t *number, Py_ssize_t width, Py_ssize_t j) {
    return (eight_bytes(number, width, DIGIT * j / 8) >> (DIGIT * j % 8)) & MASK;
}

static void set_lane(vector *r, Py_ssize_t lane, uint64_t digit) { memcpy((char *)r + 8 * lane, &digit, 8); }

static uint64_t lane_of(const vector *a, Py_ssize_t lane) {
    uint64_t digit;
    memcpy(&digit, (const char *)a + 8 * lane, 8);
    return digit;
}

/* Digits of eight big-endian numbers, of which `count` are there. */
static void read_digits(vector *r, const uint8_t *data, Py_ssize_t width, Py_ssize_t count, Py_ssize_t first,
                        Py_ssize_t digits) {
    for (Py_ssize_t j = 0; j < digits; j++) {
        uint64_t lanes[LANES] = {0};
        for (Py_ssize_t l = 0; l < count; l++) lanes[l] = read_digit(data + l * width, width, first + j);
        memcpy(&r[j], lanes, sizeof lanes);
    }
}

/* Write a number below 256^width, big-endian. */
static void write_digits(uint8_t *number, Py_ssize_t width, const uint64_t *digits, Py_ssize_t count) {
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

#define PIECES(self, width) (((width) * 8 + (self)->digits * DIGIT - 1) / ((self)->digits * DIGIT))
#define WORK_OF_READING (WORK_OF_PRODUCT + 3)

/* Take eight big-endian numbers, of which `count` are there, to Montgomery's form: x = sum_i x_i R^i, x_i below R.

   work: WORK_OF_READING spans. */
IFMA static void read_group(vector *r, const uint8_t *data, Py_ssize_t width, Py_ssize_t count, const SquareModuli *by,
                            vector *work) {
    const Py_ssize_t K = by->digits;
    vector *piece = work + WORK_OF_PRODUCT * by->span, *shift = piece + by->span, *term = shift + by->span;
    memset(r, 0, (size_t)(2 * K) * sizeof *r);
    memset(piece, 0, (size_t)(2 * K) * sizeof *piece);
    memcpy(shift, by->square, (size_t)(2 * K) * sizeof *shift);
    for (Py_ssize_t i = 0; i < PIECES(by, width); i++) {
        read_digits(piece, data, width, count, i * K, K);
        product(term, piece, shift, by, work); /* x_i R^(i + 2) / R, below 2m */
        sum_of(r, r, term, K);
        sum_of(r + K, r + K, term + K, K);
        product(shift, shift, by->square, by, work);
    }
}

#define WORK_OF_WRITING (WORK_OF_PRODUCT + 3)

/* Write eight numbers, of which `count` are wanted, below m^2 and big-endian.

   work: WORK_OF_WRITING spans. */
IFMA static void write_group(uint8_t *data, Py_ssize_t width, Py_ssize_t count, const vector *a, const SquareModuli *by,
                             vector *work) {
    const Py_ssize_t K = by->digits;
    vector *number = work + WORK_OF_PRODUCT * by->span, *whole = number + by->span, carry = broadcast(0);
    uint64_t *digits = (uint64_t *)(whole + by->span); /* 2K, and then those of the difference */
    uint64_t *difference = digits + 2 * K;
    memset(whole, 0, (size_t)(2 * K) * sizeof *whole);
    whole[0] = broadcast(1);
    product(number, a, whole, by, work); /* x_0 is at most m, x_1 at most m + 1 */
    memcpy(whole, number, (size_t)K * sizeof *whole);
    memset(whole + K, 0, (size_t)K * sizeof *whole);
    for (Py_ssize_t i = 0; i < K; i++) {
        for (Py_ssize_t j = 0; j < K; j++) {
            whole[i + j] = add_low(whole[i + j], number[K + i], by->m[j]);
            if (i + j + 1 < 2 * K) whole[i + j + 1] = add_high(whole[i + j + 1], number[K + i], by->m[j]);
        }
    }
    for (Py_ssize_t j = 0; j < 2 * K; j++) {
        const vector sum = add(whole[j], carry);
        whole[j] = digit_of(sum);
        carry = above_digit(sum);
    }
    for (Py_ssize_t l = 0; l < count; l++) {
        uint64_t borrow = 0;
        for (Py_ssize_t j = 0; j < 2 * K; j++) {
            digits[j] = lane_of(&whole[j], l);
            const uint64_t apart = digits[j] - lane_of(&by->modulus[j], l) - borrow;
            difference[j] = apart & MASK;
            borrow = apart >> 63;
        }
        const uint64_t keep = 0 - borrow; /* all ones if m^2 is more */
        for (Py_ssize_t j = 0; j < 2 * K; j++) digits[j] = (digits[j] & keep) | (difference[j] & ~keep);
        write_digits(data + l * width, width, digits, 2 * K);
    }
}

/* The interface to Python. Rows are bytes: groups * 2K * 8 integers of 64 bits. */

static Py_ssize_t bytes_of_group(const SquareModuli *self) { return 2 * self->digits * (Py_ssize_t)sizeof(vector); }

#define PAGE 4096
#define VECTORS_OF_PAGE (PAGE / (Py_ssize_t)sizeof(vector))

/* Memory for vectors, to be freed by PyMem_Free, or NULL with an error; memory_of() is where they begin. */
static void *aligned(Py_ssize_t vectors) {
    if (vectors > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(vector) - VECTORS_OF_PAGE) return PyErr_NoMemory();
    void *memory = PyMem_Malloc((size_t)(vectors + VECTORS_OF_PAGE) * sizeof(vector));
    return memory ? memory : PyErr_NoMemory();
}

static vector *memory_of(void *memory) {
    return (vector *)(((uintptr_t)memory + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
}

/* The number of groups in a row, or -1 with an error. */
static Py_ssize_t groups_of(const SquareModuli *self, const Py_buffer *row) {
    if (row->len % bytes_of_group(self) != 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no row: a group has %zd", row->len, bytes_of_group(self));
        return -1;
    }
    return row->len / bytes_of_group(self);
}

/* Bytes for some items of a size, or NULL with an error. */
static PyObject *new_bytes(Py_ssize_t items, Py_ssize_t size) {
    if (size && items > PY_SSIZE_T_MAX / 2 / size) return PyErr_NoMemory();
    return PyBytes_FromStringAndSize(NULL, items * size);
}

/* -m^-1 modulo 2^52. */
static uint64_t negative_inverse(uint64_t m) {
    uint64_t inverse = 1; /* of m modulo 2^64: each step doubles the bits that are right */
    for (int step = 0; step < 6; step++) inverse *= 2 - m * inverse;
    return (0 - inverse) & MASK;
}

/* Digits of m^2. */
static void multiply_out(uint64_t *modulus, const uint64_t *m, Py_ssize_t digits) {
    memset(modulus, 0, (size_t)(2 * digits) * sizeof *modulus);
    for (Py_ssize_t i = 0; i < digits; i++) {
        uint64_t carry = 0;
        for (Py_ssize_t j = 0; j < digits; j++) {
            const unsigned __int128 sum = (unsigned __int128)m[i] * m[j] + modulus[i + j] + carry;
            modulus[i + j] = (uint64_t)sum & MASK;
            carry = (uint64_t)(sum >> DIGIT);
        }
        modulus[i + digits] = carry;
    }
}

#define CONSTANTS 6 /* numbers of a lane: m, offset, one and square by halves */

static PyObject *SquareModuli_new(PyTypeObject *type, PyObject *arguments, PyObject *names) {
    static char *known[] = {"digits", "constants", NULL};
    Py_buffer constants; /* for each lane its constants; all numbers have equal width */
    Py_ssize_t digits;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "ny*", known, &digits, &constants)) return NULL;
    const Py_ssize_t K = digits, width = constants.len / (LANES * CONSTANTS);
    const uint8_t *numbers = constants.buf;
    SquareModuli *self = NULL;
    uint64_t odd = 1;
    for (int lane = 0; lane < LANES && width > 0; lane++) odd &= numbers[(lane * CONSTANTS + 1) * width - 1];
    if (K < 2 || K > MOST_DIGITS || K % 2 != 0) {
        PyErr_Format(PyExc_ValueError, "%zd digits; an even number from 2 to %d is possible", K, MOST_DIGITS);
    } else if (constants.len != LANES * CONSTANTS * width || width == 0 || width * 8 >= K * DIGIT + 8) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of constants; %d numbers of %zd digits are wanted", constants.len,
                     LANES * CONSTANTS, K);
    } else if (!odd) {
        PyErr_SetString(PyExc_ValueError, "a modulus is even");
    } else {
        const Py_ssize_t span = (2 * K + VECTORS_OF_PAGE - 1) / VECTORS_OF_PAGE * VECTORS_OF_PAGE;
        void *memory = aligned(6 * span);
        if (memory && (self = (SquareModuli *)PyType_GenericAlloc(type, 0)) == NULL) PyMem_Free(memory);
        if (self) {
            vector *m = memory_of(memory), *offset = m + span, *one = offset + span, *square = one + span,
                   *modulus = square + span, *inverse = modulus + span;
            vector *const places[CONSTANTS] = {m, offset, one, one + K, square, square + K};
            self->digits = K;
            self->span = span;
            self->memory = memory;
            self->m = m;
            self->offset = offset;
            self->one = one;
            self->square = square;
            self->modulus = modulus;
            self->inverse = inverse;
            for (Py_ssize_t lane = 0; lane < LANES; lane++) {
                uint64_t digits_of_m[MOST_DIGITS], digits_of_square[2 * MOST_DIGITS];
                for (int which = 0; which < CONSTANTS; which++) {
                    for (Py_ssize_t j = 0; j < K; j++) {
                        const uint64_t digit = read_digit(numbers + (lane * CONSTANTS + which) * width, width, j);
                        set_lane(&places[which][j], lane, digit);
                        if (which == 0) digits_of_m[j] = digit;
                    }
                }
                multiply_out(digits_of_square, digits_of_m, K);
                for (Py_ssize_t j = 0; j < 2 * K; j++) set_lane(&modulus[j], lane, digits_of_square[j]);
                set_lane(inverse, lane, negative_inverse(digits_of_m[0]));
            }
        }
    }
    PyBuffer_Release(&constants);
    return (PyObject *)self;
}

static void SquareModuli_dealloc(SquareModuli *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyMem_Free(self->memory);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Big-endian numbers of equal width to a row. They are reduced modulo m^2. */
static PyObject *SquareModuli_read(SquareModuli *self, PyObject *arguments) {
    Py_buffer data;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(arguments, "y*n", &data, &width)) return NULL;
    PyObject *made = NULL;
    void *memory = NULL;
    const Py_ssize_t most = MOST_PIECES * self->digits * DIGIT / 8;
    if (width < 1 || width > most || data.len % width != 0) {
        PyErr_Format(PyExc_ValueError, "%zd bytes are no numbers of %zd bytes; these may have %zd", data.len, width, most);
    } else if ((memory = aligned((1 + WORK_OF_READING) * self->span)) != NULL) {
        const Py_ssize_t count = data.len / width, groups = (count + LANES - 1) / LANES, size = bytes_of_group(self);
        made = new_bytes(groups, size);
        if (made) {
            char *row = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *group = memory_of(memory), *work = group + self->span;
            for (Py_ssize_t g = 0; g < groups; g++) {
                const Py_ssize_t rest = count - g * LANES;
                read_group(group, (const uint8_t *)data.buf + g * LANES * width, width, rest < LANES ? rest : LANES, self,
                           work);
                memcpy(row + g * size, group, (size_t)size);
            }
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&data);
    return made;
}

/* The first numbers of a row, big-endian and of equal width, below m^2. */
static PyObject *SquareModuli_write(SquareModuli *self, PyObject *arguments) {
    Py_buffer row;
    Py_ssize_t count, width;
    if (!PyArg_ParseTuple(arguments, "y*nn", &row, &count, &width)) return NULL;
    PyObject *made = NULL;
    void *memory = NULL;
    const Py_ssize_t groups = groups_of(self, &row), size = bytes_of_group(self);
    if (groups >= 0 && (count < 0 || count > groups * LANES || width < 1)) {
        PyErr_Format(PyExc_ValueError, "%zd numbers of %zd bytes; the row has %zd", count, width, groups * LANES);
    } else if (groups >= 0 && (memory = aligned((1 + WORK_OF_WRITING) * self->span)) != NULL) {
        made = new_bytes(count, width);
        if (made) {
            uint8_t *data = (uint8_t *)PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *group = memory_of(memory), *work = group + self->span;
            for (Py_ssize_t done = 0; done < count; done += LANES) {
                memcpy(group, (const char *)row.buf + done / LANES * size, (size_t)size);
                write_group(data + done * width, width, count - done < LANES ? count - done : LANES, group, self, work);
            }
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&row);
    return made;
}

/* The products of two rows, number by number. */
static PyObject *SquareModuli_products(SquareModuli *self, PyObject *arguments) {
    Py_buffer a, b;
    if (!PyArg_ParseTuple(arguments, "y*y*", &a, &b)) return NULL;
    PyObject *made = NULL;
    void *memory = NULL;
    const Py_ssize_t groups = groups_of(self, &a), size = bytes_of_group(self);
    if (groups >= 0 && a.len != b.len) {
        PyErr_Format(PyExc_ValueError, "rows of %zd and %zd bytes have no products", a.len, b.len);
    } else if (groups >= 0 && (memory = aligned((2 + WORK_OF_PRODUCT) * self->span)) != NULL) {
        made = new_bytes(groups, size);
        if (made) {
            char *row = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *first = memory_of(memory), *second = first + self->span, *work = second + self->span;
            for (Py_ssize_t g = 0; g < groups; g++) {
                memcpy(first, (const char *)a.buf + g * size, (size_t)size);
                memcpy(second, (const char *)b.buf + g * size, (size_t)size);
                product(first, first, second, self, work);
                memcpy(row + g * size, first, (size_t)size);
            }
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&a);
    PyBuffer_Release(&b);
    return made;
}

/* Powers of a row, with an exponent for each lane, by digits of some bits each: for all lanes the highest first. */
static PyObject *SquareModuli_powers(SquareModuli *self, PyObject *arguments) {
    Py_buffer a, windows;
    int bits;
    if (!PyArg_ParseTuple(arguments, "y*y*i", &a, &windows, &bits)) return NULL;
    PyObject *made = NULL;
    void *memory = NULL;
    const Py_ssize_t groups = groups_of(self, &a), size = bytes_of_group(self), K = self->digits;
    if (groups >= 0 && (bits < 1 || bits > LONGEST_WINDOW || windows.len % LANES != 0)) {
        PyErr_Format(PyExc_ValueError, "%zd digits of %d bits; eight lanes have digits of 1 to %d", windows.len, bits,
                     LONGEST_WINDOW);
    } else if (groups >= 0 && (memory = aligned((3 + WORK_OF_PRODUCT) * self->span + (2 * K << bits))) != NULL) {
        made = new_bytes(groups, size);
        if (made) {
            char *row = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *base = memory_of(memory), *result = base + self->span, *work = result + self->span;
            for (Py_ssize_t g = 0; g < groups; g++) {
                memcpy(base, (const char *)a.buf + g * size, (size_t)size);
                power(result, base, windows.buf, windows.len / LANES, bits, self, work);
                memcpy(row + g * size, result, (size_t)size);
            }
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&a);
    PyBuffer_Release(&windows);
    return made;
}

/* The table of powers of two bases, which are the numbers of the first and the last lane of a row: in row i of each
   entry e is base^(e 2^(bits i)). */
static PyObject *SquareModuli_table(SquareModuli *self, PyObject *arguments) {
    Py_buffer bases;
    Py_ssize_t rows;
    int bits;
    if (!PyArg_ParseTuple(arguments, "y*ni", &bases, &rows, &bits)) return NULL;
    PyObject *made = NULL;
    void *memory = NULL;
    const Py_ssize_t groups = groups_of(self, &bases), size = bytes_of_group(self), K = self->digits;
    if (groups >= 0 && (groups != 1 || bits < SHORTEST_TABLE_WINDOW || bits > LONGEST_WINDOW || rows < 0)) {
        PyErr_Format(PyExc_ValueError, "%zd rows of a table of %zd groups, by %d bits; a table has one, and %d to %d bits",
                     rows, groups, bits, SHORTEST_TABLE_WINDOW, LONGEST_WINDOW);
    } else if (groups == 1 && (memory = aligned((2 + WORK_OF_PRODUCT) * self->span)) != NULL) {
        made = new_bytes(rows, (4 * K * 8) << bits);
        if (made) {
            char *table = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *step = memory_of(memory), *reached = step + self->span, *work = reached + self->span;
            memcpy(step, bases.buf, (size_t)size);
            for (Py_ssize_t row = 0; row < rows; row++, table += (4 * K * 8) << bits) {
                memcpy(reached, self->one, (size_t)size);
                for (Py_ssize_t e = 0; e < 1 << bits; e++) {
                    for (Py_ssize_t j = 0; j < 2 * K; j++) {
                        const uint64_t first = lane_of(&reached[j], 0), other = lane_of(&reached[j], LANES - 1);
                        memcpy(table + ((j << bits) + e) * 8, &first, 8);
                        memcpy(table + (((2 * K + j) << bits) + e) * 8, &other, 8);
                    }
                    product(reached, reached, step, self, work);
                }
                memcpy(step, reached, (size_t)size);
            }
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&bases);
    return made;
}

/* Powers of a table's bases, for exponents by groups of eight: digit i of each of the eight, then digit i + 1. */
static PyObject *SquareModuli_fixed_powers(SquareModuli *self, PyObject *arguments) {
    Py_buffer table, windows;
    int bits;
    if (!PyArg_ParseTuple(arguments, "y*y*i", &table, &windows, &bits)) return NULL;
    PyObject *made = NULL;
    void *memory = NULL;
    const Py_ssize_t size = bytes_of_group(self), K = self->digits;
    const int fit = bits >= SHORTEST_TABLE_WINDOW && bits <= LONGEST_WINDOW;
    const Py_ssize_t rows = fit ? table.len / ((4 * K * 8) << bits) : 0;
    if (rows == 0 || table.len != rows * ((4 * K * 8) << bits) || windows.len % (rows * LANES) != 0) {
        PyErr_Format(PyExc_ValueError, "%zd digits of %d bits and a table of %zd bytes do not fit each other",
                     windows.len, bits, table.len);
    } else {
        const Py_ssize_t groups = windows.len / (rows * LANES);
        memory = aligned((2 + WORK_OF_PRODUCT) * self->span + 2 * K * groups);
        if (memory && (made = new_bytes(groups, size)) != NULL) {
            char *row = PyBytes_AsString(made);
            Py_BEGIN_ALLOW_THREADS;
            vector *work = memory_of(memory), *results = work + (2 + WORK_OF_PRODUCT) * self->span;
            for (Py_ssize_t g = 0; g < groups; g += TOGETHER)
                fixed_powers(results + g * 2 * K, groups - g < TOGETHER ? groups - g : TOGETHER, table.buf, rows, bits,
                             (const uint8_t *)windows.buf + g * rows * LANES, self, work);
            memcpy(row, results, (size_t)(groups * size));
            Py_END_ALLOW_THREADS;
        }
        PyMem_Free(memory);
    }
    PyBuffer_Release(&table);
    PyBuffer_Release(&windows);
    return made;
}

static PyMethodDef SquareModuli_methods[] = {
    {"read", (PyCFunction)SquareModuli_read, METH_VARARGS, NULL},
    {"write", (PyCFunction)SquareModuli_write, METH_VARARGS, NULL},
    {"products", (PyCFunction)SquareModuli_products, METH_VARARGS, NULL},
    {"powers", (PyCFunction)SquareModuli_powers, METH_VARARGS, NULL},
    {"table", (PyCFunction)SquareModuli_table, METH_VARARGS, NULL},
    {"fixed_powers", (PyCFunction)SquareModuli_fixed_powers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SquareModuli_slots[] = {
    {Py_tp_new, SquareModuli_new},
    {Py_tp_dealloc, SquareModuli_dealloc},
    {Py_tp_methods, SquareModuli_methods},
    {0, NULL},
};

static PyType_Spec SquareModuli_spec = {
    .name = "fenchel.common.crypto.residues._ifma.SquareModuli",
    .basicsize = sizeof(SquareModuli),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SquareModuli_slots,
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
    PyObject *type = module ? PyType_FromSpec(&SquareModuli_spec) : NULL;
    if (module && (type == NULL || PyModule_AddObjectRef(module, "SquareModuli", type) < 0)) Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
