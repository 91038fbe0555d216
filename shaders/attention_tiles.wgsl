// Tiles of attention on hardware: 128 invocations work on 64 rows and 64 columns at a time. Invocation `lane` has 8
// rows, 4 from down * 4 on and 4 from 32 + down * 4 on, and 4 columns from right * 4 on. Both factors of a product lie
// in workgroup memory, 32 steps of each: one vec4 holds 4 rows, or 4 columns, of one step.
//
// A group has PARTS times 128 invocations. Its parts take blocks of 64 columns in turn, each part with a tile of its
// own, and join their sums at the end. All make equally many rounds, because barriers count for the whole group: a part
// that has no block left is not `busy`, reads nothing and adds nothing.
var<workgroup> tile: array<vec4<f32>, 1024u * PARTS>;
var<private> part: u32;
var<private> busy: bool = true;

// Where the tile of a part begins.
fn tile_of(number: u32) -> u32 {
    return number * 1024u;
}

// The first row of a group. FLIP: the last rows first, so that rows that see the most columns do not come last.
fn first_row(flat: u32) -> u32 {
    let block = flat / (OWN_HEADS * CHUNKS);
    if (FLIP == 1u) {
        return ((OWN_ROWS + 63u) / 64u - 1u - block) * 64u;
    }
    return block * 64u;
}

// 8 rows of 4 columns: column r of a matrix is row r.
struct Sums {
    low: mat4x4<f32>,
    high: mat4x4<f32>,
}

fn outer(a: vec4<f32>, b: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(a.x * b, a.y * b, a.z * b, a.w * b);
}

// By what the place of a quad is changed in the four steps from `step` on, so that neighbours that store different steps,
// or different quads, meet different banks.
fn turned(step: u32) -> u32 {
    return (((step >> 2u) & 1u) << 2u) | ((step >> 3u) & 3u);
}

fn multiply(lane: u32, before: Sums, steps: u32) -> Sums {
    var low = before.low;
    var high = before.high;
    for (var step = 0u; step < steps; step += 4u) {
        let by = turned(step);
        let left = tile_of(part) + step * 16u + ((lane / 16u) ^ by);
        let right = tile_of(part) + 512u + step * 16u + ((lane % 16u) ^ by);
        let b0 = tile[right];
        low += outer(tile[left], b0);
        high += outer(tile[left + 8u], b0);
        let b1 = tile[right + 16u];
        low += outer(tile[left + 16u], b1);
        high += outer(tile[left + 24u], b1);
        let b2 = tile[right + 32u];
        low += outer(tile[left + 32u], b2);
        high += outer(tile[left + 40u], b2);
        let b3 = tile[right + 48u];
        low += outer(tile[left + 48u], b3);
        high += outer(tile[left + 56u], b3);
    }
    return Sums(low, high);
}

// Where invocation `lane` reads 4 x 4 elements of a factor: its quad of rows, and its first step of 32. Eight neighbours
// read side by side.
fn quad_of(lane: u32) -> u32 {
    return lane / 8u * 4u;
}

fn step_of(lane: u32) -> u32 {
    return lane % 8u * 4u;
}

fn keep(lane: u32, rows: mat4x4<f32>, columns: mat4x4<f32>) {
    let left = transpose(rows);
    let right = transpose(columns);
    let at = tile_of(part) + step_of(lane) * 16u + ((quad_of(lane) / 4u) ^ turned(step_of(lane)));
    tile[at] = left[0];
    tile[at + 16u] = left[1];
    tile[at + 32u] = left[2];
    tile[at + 48u] = left[3];
    tile[at + 512u] = right[0];
    tile[at + 528u] = right[1];
    tile[at + 544u] = right[2];
    tile[at + 560u] = right[3];
}

fn multiply_steps(lane: u32, before: Sums, first: u32) -> Sums {
    if (!busy) {
        return before;
    }
    if (D % 32u == 0u) {
        return multiply(lane, before, 32u);
    }
    return multiply(lane, before, min(32u, D - first + 3u));
}

// The products of 64 rows and 64 columns over all D steps.
fn score_tile(lane: u32, row: u32, head: u32, column: u32, other: u32) -> Sums {
    var sums = Sums();
    let m = row + quad_of(lane);
    let n = column + quad_of(lane);
    for (var first = 0u; first < D; first += 32u) {
        let c = first + step_of(lane);
        var rows = mat4x4<f32>();
        var columns = mat4x4<f32>();
        if (busy) {
            rows = mat4x4<f32>(
                row_or_zero(m, head, c),
                row_or_zero(m + 1u, head, c),
                row_or_zero(m + 2u, head, c),
                row_or_zero(m + 3u, head, c),
            );
            columns = mat4x4<f32>(
                column_or_zero(n, other, c),
                column_or_zero(n + 1u, other, c),
                column_or_zero(n + 2u, other, c),
                column_or_zero(n + 3u, other, c),
            );
        }
        workgroupBarrier();
        keep(lane, rows, columns);
        workgroupBarrier();
        sums = multiply_steps(lane, sums, first);
    }
    return sums;
}
