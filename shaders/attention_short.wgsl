// Attention over short rows on hardware: a group of 128 invocations works on 8 rows of one head, so that few rows make
// many groups. Of 64 columns at a time invocation `lane` weighs 4 neighbours for row lane / 16. It adds up the
// weighted values of the columns for all 8 rows: 4 elements of the head (`across_of`), of some of the columns (`part_of`).
var<workgroup> weight: array<vec4<f32>, 128>;  // row by row, 16 of each
var<workgroup> stage: array<vec4<f32>, 520>;  // 4 elements of 64 columns, 8 times; at the end the sums of every part

const QUARTERS = WIDE / 4u;  // invocations beside one another
const PARTS = 128u / QUARTERS;

// 8 rows: column r of a matrix is row r.
struct Sums {
    low: mat4x4<f32>,
    high: mat4x4<f32>,
}

fn across_of(lane: u32) -> u32 {
    return lane % QUARTERS * 4u;
}

fn part_of(lane: u32) -> u32 {
    return lane / QUARTERS;
}

// Where column `n` of 64 puts its elements `step` * 4 ...: four neighbours lie 16 places apart, so that 16 invocations read
// side by side.
fn staged(n: u32, step: u32) -> u32 {
    return step * 65u + n % 4u * 16u + n / 4u;
}

fn four_of(lane: u32, step: u32) -> mat4x4<f32> {
    let at = step * 65u + lane % 16u;
    return mat4x4<f32>(stage[at], stage[at + 16u], stage[at + 32u], stage[at + 48u]);
}

// The products of a row and 4 of 64 columns over all D steps.
fn score4(lane: u32, row: u32, head: u32, column: u32, other: u32) -> vec4<f32> {
    var sums = vec4<f32>();
    for (var first = 0u; first < D; first += 32u) {
        workgroupBarrier();
        for (var k = 0u; k < 4u; k++) {
            let n = k * 16u + lane / 8u;
            stage[staged(n, lane % 8u)] = column_or_zero(column + n, other, first + lane % 8u * 4u);
        }
        workgroupBarrier();
        for (var step = 0u; step < 8u; step++) {
            sums += row_or_zero(row, head, first + step * 4u) * four_of(lane, step);
        }
    }
    return sums;
}

// Adds to the sums of 8 rows the values, or the `second` ones, of the 64 columns from `column` on, as far as some row sees
// them.
fn add_short(
    lane: u32, before: Sums, row: u32, column: u32, end: u32, other: u32, chunk: u32, second: bool
) -> Sums {
    var low = before.low;
    var high = before.high;
    let last = OWN_ROWS - 1u;
    let c = chunk + across_of(lane);
    for (var at = part_of(lane); at < 16u && column + at * 4u < end; at += PARTS) {
        let n = column + at * 4u;
        let four = mat4x4<f32>(
            value_or_zero(n, other, c, second),
            value_or_zero(n + 1u, other, c, second),
            value_or_zero(n + 2u, other, c, second),
            value_or_zero(n + 3u, other, c, second),
        );
        if (n >= first_seen(min(row + 7u, last)) && n + 3u < end_seen(row)) {
            low += mat4x4<f32>(
                four * weight[at], four * weight[at + 16u], four * weight[at + 32u], four * weight[at + 48u]
            );
            high += mat4x4<f32>(
                four * weight[at + 64u], four * weight[at + 80u], four * weight[at + 96u], four * weight[at + 112u]
            );
        } else {
            low += mat4x4<f32>(
                of_seen(four, row, n, weight[at]),
                of_seen(four, row + 1u, n, weight[at + 16u]),
                of_seen(four, row + 2u, n, weight[at + 32u]),
                of_seen(four, row + 3u, n, weight[at + 48u]),
            );
            high += mat4x4<f32>(
                of_seen(four, row + 4u, n, weight[at + 64u]),
                of_seen(four, row + 5u, n, weight[at + 80u]),
                of_seen(four, row + 6u, n, weight[at + 96u]),
                of_seen(four, row + 7u, n, weight[at + 112u]),
            );
        }
    }
    return Sums(low, high);
}

// What a row does not see is left out, not multiplied by 0, for it may be a NaN.
fn of_seen(four: mat4x4<f32>, row: u32, n: u32, weights: vec4<f32>) -> vec4<f32> {
    let own = min(row, OWN_ROWS - 1u);
    let columns = n + vec4<u32>(0u, 1u, 2u, 3u);
    let sees = (columns >= vec4<u32>(first_seen(own))) & (columns < vec4<u32>(end_seen(own)));
    let none = vec4<f32>();
    return mat4x4<f32>(
        select(none, four[0], sees.x), select(none, four[1], sees.y),
        select(none, four[2], sees.z), select(none, four[3], sees.w),
    ) * weights;
}

// Adds up what the parts of the columns gave 4 rows, and writes it, each row times a factor.
fn write_parts(lane: u32, sums: mat4x4<f32>, row: u32, head: u32, chunk: u32, factors: vec4<f32>, second: bool) {
    workgroupBarrier();
    stage[lane] = sums[0];
    stage[lane + 128u] = sums[1];
    stage[lane + 256u] = sums[2];
    stage[lane + 384u] = sums[3];
    workgroupBarrier();
    for (var r = part_of(lane); r < 4u; r += PARTS) {
        var sum = vec4<f32>();
        for (var part = 0u; part < PARTS; part++) {
            sum += stage[r * 128u + part * QUARTERS + lane % QUARTERS];
        }
        write_row(row + r, head, chunk + across_of(lane), sum * factors[r], second);
    }
}
