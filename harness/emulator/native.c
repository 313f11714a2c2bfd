/* The emulator's inner loops: what `native` may do instead of numpy, with the same bits.

   A function that moves memory does an instruction completely, or returns DECLINED and has changed nothing. It leaves
   accesses out of bounds and possible races to numpy, which reports them. Arrays have `state`'s layout:
   vector[register][wave][lane], lanes[wave][lane]. `rows` holds the numbers of the waves that step. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef int64_t i64;
typedef uint64_t u64;

enum { DONE = 0, DECLINED = 1, NOBODY = 0, MANY = 255, ALIKE = 253, MOST_BYTES = 16 };

/* Arithmetic on rows x columns. Each operand has its steps between rows and columns; 0 broadcasts one value. */

void fused(i64 rows, i64 columns, const float *a, i64 a_row, i64 a_column, const float *b, i64 b_row, i64 b_column,
           const float *c, i64 c_row, i64 c_column, float *out)
{
    for (i64 i = 0; i < rows; i++, a += a_row, b += b_row, c += c_row, out += columns)
        if (a_column && b_column && c_column)
            for (i64 j = 0; j < columns; j++) out[j] = __builtin_fmaf(a[j], b[j], c[j]);
        else
            for (i64 j = 0; j < columns; j++)
                out[j] = __builtin_fmaf(a[j * a_column], b[j * b_column], c[j * c_column]);
}

/* total[n][i][j] += sum over ascending k of a[n][i][k] b[n][k][j], each addition rounded once. */
void product_f32(i64 count, i64 lines, i64 depth, i64 columns, const float *a, const float *b, float *total)
{
    for (i64 n = 0; n < count; n++, b += depth * columns)
        for (i64 i = 0; i < lines; i++, a += depth, total += columns)
            for (i64 k = 0; k < depth; k++)
                for (i64 j = 0; j < columns; j++)
                    total[j] = __builtin_fmaf(a[k], b[k * columns + j], total[j]);
}

void product_i32(i64 count, i64 lines, i64 depth, i64 columns, const u32 *a, const u32 *b, u32 *total)
{
    for (i64 n = 0; n < count; n++, b += depth * columns)
        for (i64 i = 0; i < lines; i++, a += depth, total += columns)
            for (i64 k = 0; k < depth; k++)
                for (i64 j = 0; j < columns; j++) total[j] += a[k] * b[k * columns + j];
}

/* v_perm_b32: bytes of first:second by selector; 8 to 11 repeat a sign, 12 gives 0, higher ones 0xff. */
void permuted(i64 rows, i64 columns, const u32 *a, i64 a_row, i64 a_column, const u32 *b, i64 b_row, i64 b_column,
              const u32 *c, i64 c_row, i64 c_column, u32 *out)
{
    for (i64 i = 0; i < rows; i++)
        for (i64 j = 0; j < columns; j++) {
            u64 data = (u64)a[i * a_row + j * a_column] << 32 | b[i * b_row + j * b_column];
            u32 selector = c[i * c_row + j * c_column], result = 0;
            for (int byte = 0; byte < 4; byte++) {
                u32 chosen = selector >> 8 * byte & 255, value = chosen == 12 ? 0 : 255;
                if (chosen < 8) value = (u32)(data >> 8 * chosen) & 255;
                else if (chosen < 12) value = data >> (16 * (chosen - 8) + 15) & 1 ? 255 : 0;
                result |= value << 8 * byte;
            }
            *out++ = result;
        }
}

/* Memory */

typedef struct {
    i64 size, sign, half; /* bytes; 1 if signed; 1 or 2: the half of the register that is written */
} Shape;

typedef struct {
    u32 *vector; /* begins with register 0 */
    i64 register_step, lane_count;
    const u8 *lanes;
    const i64 *rows;
    i64 row_count;
} Waves;

static void deliver(u32 *cell, i64 step, const u8 *from, Shape shape)
{
    u32 word = 0;
    if (shape.size >= 4) {
        for (i64 at = 0; at < shape.size; at += 4, cell += step) memcpy(cell, from + at, 4);
        return;
    }
    memcpy(&word, from, (size_t)shape.size);
    if (shape.sign) {
        int shift = (int)(32 - 8 * shape.size);
        word = (u32)((int32_t)(word << shift) >> shift);
    }
    if (shape.half == 1) word = (*cell & 0xFFFF0000u) | (word & 0xFFFF);
    if (shape.half == 2) word = (*cell & 0xFFFFu) | word << 16;
    *cell = word;
}

static void collect(const u32 *cell, i64 step, u8 *to, Shape shape)
{
    if (shape.size >= 4) {
        for (i64 at = 0; at < shape.size; at += 4, cell += step) memcpy(to + at, cell, 4);
        return;
    }
    u32 word = shape.half == 2 ? *cell >> 16 : *cell;
    memcpy(to, &word, (size_t)shape.size);
}

/* LDS: bytes, and the writer and reader of each since the last barrier; NULL if races are not checked. */
typedef struct {
    u8 *bytes, *writer, *reader;
    i64 size, waves_per_group;
} Shared;

static i64 in_shared(const Shared *shared, u32 address, i64 size)
{
    return (i64)address + size <= shared->size;
}

static void read_by(u8 *marks, i64 size, u8 mine)
{
    for (i64 k = 0; k < size; k++) marks[k] = marks[k] == NOBODY || marks[k] == mine ? mine : MANY;
}

i64 shared_load(const Waves *waves, const Shared *shared, const Shape *shape, i64 address, i64 result, i64 parts,
                const i64 *offsets)
{
    i64 size = shape->size, count = waves->lane_count;
    for (int doing = 0; doing < 2; doing++)
        for (i64 w = 0; w < waves->row_count; w++) {
            i64 row = waves->rows[w], first = row * count, base = row / shared->waves_per_group * shared->size;
            u8 mine = (u8)(row % shared->waves_per_group + 1);
            for (i64 lane = 0; lane < count; lane++) {
                if (!waves->lanes[first + lane]) continue;
                u32 *cell = waves->vector + first + lane, at = cell[address * waves->register_step];
                for (i64 part = 0; part < parts; part++) {
                    u32 place = at + (u32)offsets[part];
                    i64 byte = base + place;
                    if (doing) {
                        if (shared->writer) read_by(shared->reader + byte, size, mine);
                        deliver(cell + (result + part * (size < 4 ? 1 : size / 4)) * waves->register_step,
                                waves->register_step, shared->bytes + byte, *shape);
                        continue;
                    }
                    if (!in_shared(shared, place, size)) return DECLINED;
                    for (i64 k = 0; shared->writer && k < size; k++) {
                        u8 writer = shared->writer[byte + k];
                        if (writer != NOBODY && writer != mine && writer != ALIKE) return DECLINED;
                    }
                }
            }
        }
    return DONE;
}

/* One part of a store. Declines if another wave used a byte, also in this very step. */
i64 shared_store(const Waves *waves, const Shared *shared, const Shape *shape, i64 address, i64 data, i64 offset)
{
    i64 size = shape->size, count = waves->lane_count, done = 0, verdict = DONE;
    i64 *before = shared->writer ? malloc((size_t)(waves->row_count * count * size) * sizeof *before) : NULL;
    if (shared->writer && !before) return DECLINED;
    for (int doing = 0; doing < 3 && verdict == DONE; doing++) /* bounds; marks, which can be undone; values */
        for (i64 w = 0; w < waves->row_count && verdict == DONE; w++) {
            i64 row = waves->rows[w], first = row * count, base = row / shared->waves_per_group * shared->size;
            u8 mine = (u8)(row % shared->waves_per_group + 1);
            for (i64 lane = 0; lane < count && verdict == DONE; lane++) {
                if (!waves->lanes[first + lane]) continue;
                const u32 *cell = waves->vector + first + lane;
                u32 place = cell[address * waves->register_step] + (u32)offset;
                if (doing == 0 && !in_shared(shared, place, size)) verdict = DECLINED;
                if (doing == 2)
                    collect(cell + data * waves->register_step, waves->register_step, shared->bytes + base + place,
                            *shape);
                for (i64 byte = base + place; doing == 1 && before && byte < base + place + size; byte++) {
                    u8 writer = shared->writer[byte], reader = shared->reader[byte];
                    if ((writer != NOBODY && writer != mine) || (reader != NOBODY && reader != mine)) {
                        verdict = DECLINED;
                        break;
                    }
                    before[done++] = byte << 8 | writer;
                    shared->writer[byte] = mine;
                }
            }
        }
    while (verdict == DECLINED && done--) shared->writer[before[done] >> 8] = (u8)before[done];
    free(before);
    return verdict;
}

/* Global memory: allocations in ascending order, none overlapping. `bytes`: their addresses in this process. */
typedef struct {
    const u64 *starts, *ends, *bytes;
    const u8 *writable;
    i64 count;
} Global;

static u8 *find(const Global *memory, u64 address, i64 size, int writing, i64 *last)
{
    i64 low = *last;
    int here = memory->starts[low] <= address && (low + 1 == memory->count || address < memory->starts[low + 1]);
    if (!here) {
        i64 high = memory->count;
        low = 0;
        while (high - low > 1) {
            i64 middle = (low + high) / 2;
            if (memory->starts[middle] <= address) low = middle; else high = middle;
        }
        *last = low;
    }
    if (address < memory->starts[low] || address >= memory->ends[low] || memory->ends[low] - address < (u64)size ||
        (writing && !memory->writable[low]))
        return NULL;
    return (u8 *)(uintptr_t)(memory->bytes[low] + (address - memory->starts[low]));
}

/* goals: the address of each lane's access. moved, records: a buffer's offset for each lane, and the number of bytes
   that each wave's descriptor grants, by dwords; NULL without a descriptor. */
i64 global_access(const Waves *waves, const Global *memory, const Shape *shape, const u64 *goals, const u64 *moved,
                  const u64 *records, i64 writing, i64 data)
{
    static const u8 nothing[MOST_BYTES];
    i64 count = waves->lane_count, step = waves->register_step, last = 0;
    Shape part = *shape;
    if (!memory->count) return DECLINED;
    if (moved && part.size > 4) part.size = 4;
    for (int doing = 0; doing < 2; doing++)
        for (i64 at = 0; at < shape->size; at += part.size)
            for (i64 w = 0; w < waves->row_count; w++)
                for (i64 lane = 0; lane < count; lane++) {
                    i64 first = waves->rows[w] * count + lane, number = w * count + lane;
                    if (!waves->lanes[first]) continue;
                    u32 *cell = waves->vector + (data + at / 4) * step + first;
                    if (moved && moved[number] + (u64)(at + part.size) > records[w]) {
                        if (doing && !writing) deliver(cell, step, nothing, part);
                        continue;
                    }
                    u8 *place = find(memory, goals[number] + (u64)at, part.size, (int)writing, &last);
                    if (!place) return DECLINED;
                    if (doing && writing) collect(cell, step, place, part);
                    if (doing && !writing) deliver(cell, step, place, part);
                }
    return DONE;
}

/* A lane's own memory of `length` bytes. */
i64 scratch_access(const Waves *waves, u8 *scratch, i64 length, const Shape *shape, const i64 *offsets, i64 writing,
                   i64 data)
{
    i64 count = waves->lane_count;
    for (int doing = 0; doing < 2; doing++)
        for (i64 w = 0; w < waves->row_count; w++)
            for (i64 lane = 0; lane < count; lane++) {
                i64 first = waves->rows[w] * count + lane, offset = offsets[w * count + lane];
                if (!waves->lanes[first]) continue;
                if (offset < 0 || offset > length - shape->size) return DECLINED;
                u32 *cell = waves->vector + data * waves->register_step + first;
                if (doing && writing) collect(cell, waves->register_step, scratch + first * length + offset, *shape);
                if (doing && !writing) deliver(cell, waves->register_step, scratch + first * length + offset, *shape);
            }
    return DONE;
}
