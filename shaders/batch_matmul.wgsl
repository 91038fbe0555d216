// Products of GROUPS pairs of matrices on hardware: a group of 256 invocations computes a tile of one product, 64 columns of
// 64 rows (4 x 4 sums each) or of 128 (TALL: 8 x 4). It copies 16 of the K steps of a and b to workgroup memory at a time,
// and loads the next meanwhile.
var<workgroup> tile_a: array<vec4<f32>, 512>;
var<workgroup> tile_b: array<vec4<f32>, 256>;

// Four neighbours along K or along the rows, whichever lies side by side in memory; zero outside.
fn four_of_a(base: u32, m: u32, k: u32) -> vec4<f32> {
    var found = vec4<f32>();
    if (m >= M || k >= K) {
        return found;
    }
    let at = base + m * A_M + k * A_K;
    if (A_ALIGNED == 1u) {
        return a_four(at);
    }
    if (A_K == 1u) {
        for (var q = 0u; q < 4u; q++) { if (k + q < K) { found[q] = a_at(at + q); } }
    } else {
        for (var q = 0u; q < 4u; q++) { if (m + q < M) { found[q] = a_at(at + q); } }
    }
    return found;
}

fn four_of_b(base: u32, n: u32, k: u32) -> vec4<f32> {
    var found = vec4<f32>();
    if (n >= N || k >= K) {
        return found;
    }
    let at = base + n * B_N + k * B_K;
    if (B_ALIGNED == 1u) {
        return b_four(at);
    }
    if (B_K == 1u) {
        for (var q = 0u; q < 4u; q++) { if (k + q < K) { found[q] = b_at(at + q); } }
    } else {
        for (var q = 0u; q < 4u; q++) { if (n + q < N) { found[q] = b_at(at + q); } }
    }
    return found;
}

// Where invocation `lane` puts its four: (row or column within the tile, step within the 16).
fn place(lane: u32, along_k: bool) -> vec2<u32> {
    return select(vec2<u32>(lane % 16u * 4u, lane / 16u), vec2<u32>(lane / 4u, lane % 4u * 4u), along_k);
}

fn keep_a(at: vec2<u32>, half: u32, found: vec4<f32>) {
    let quad = half * 16u + at.x / 4u;
    if (A_K == 1u) {
        for (var q = 0u; q < 4u; q++) { tile_a[(at.y + q) * 32u + quad][at.x % 4u] = found[q]; }
    } else {
        tile_a[at.y * 32u + quad] = found;
    }
}

fn keep_b(at: vec2<u32>, found: vec4<f32>) {
    if (B_K == 1u) {
        for (var q = 0u; q < 4u; q++) { tile_b[(at.y + q) * 16u + at.x / 4u][at.x % 4u] = found[q]; }
    } else {
        tile_b[at.y * 16u + at.x / 4u] = found;
    }
}

fn write(base: u32, m: u32, n: u32, values: vec4<f32>) {
    if (m < M) {
        for (var q = 0u; q < 4u; q++) { if (n + q < N) { store(base + m * C_M + n + q, values[q]); } }
    }
}

fn outer(a: vec4<f32>, b: vec4<f32>) -> mat4x4<f32> {
    return mat4x4<f32>(a.x * b, a.y * b, a.z * b, a.w * b);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let height = 64u + 64u * TALL;
    let across = (N + 63u) / 64u;
    let tiles = across * ((M + height - 1u) / height);
    let flat = (group.z * groups.y + group.y) * groups.x + group.x;
    if (flat >= UNITS) {
        return;
    }
    let tile = flat % tiles;
    let row = tile / across * height;
    let column = tile % across * 64u;
    let base_a = flat / tiles * A_G;
    let base_b = flat / tiles * B_G;
    let at_a = place(lane, A_K == 1u);
    let at_b = place(lane, B_K == 1u);
    var next_a = four_of_a(base_a, row + at_a.x, at_a.y);
    var more_a = vec4<f32>();
    if (TALL == 1u) {
        more_a = four_of_a(base_a, row + 64u + at_a.x, at_a.y);
    }
    var next_b = four_of_b(base_b, column + at_b.x, at_b.y);
    var low = mat4x4<f32>();
    var high = mat4x4<f32>();
    let down = lane / 16u;
    let right = lane % 16u;
    for (var k = 0u; k < K; k += 16u) {
        workgroupBarrier();
        keep_a(at_a, 0u, next_a);
        if (TALL == 1u) {
            keep_a(at_a, 1u, more_a);
        }
        keep_b(at_b, next_b);
        workgroupBarrier();
        next_a = four_of_a(base_a, row + at_a.x, k + 16u + at_a.y);
        if (TALL == 1u) {
            more_a = four_of_a(base_a, row + 64u + at_a.x, k + 16u + at_a.y);
        }
        next_b = four_of_b(base_b, column + at_b.x, k + 16u + at_b.y);
        for (var step = 0u; step < 16u; step++) {
            let four_b = tile_b[step * 16u + right];
            low += outer(tile_a[step * 32u + down], four_b);
            if (TALL == 1u) {
                high += outer(tile_a[step * 32u + 16u + down], four_b);
            }
        }
    }
    let base = flat / tiles * C_G;
    let m = row + down * 4u;
    let n = column + right * 4u;
    write(base, m, n, low[0]);
    write(base, m + 1u, n, low[1]);
    write(base, m + 2u, n, low[2]);
    write(base, m + 3u, n, low[3]);
    if (TALL == 1u) {
        write(base, m + 64u, n, high[0]);
        write(base, m + 65u, n, high[1]);
        write(base, m + 66u, n, high[2]);
        write(base, m + 67u, n, high[3]);
    }
}
