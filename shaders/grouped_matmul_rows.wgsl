// Rows of x, each times the matrix of w that its idx names, on hardware: a group of 256 invocations computes 64 columns of one
// row. 16 of them share a sum over K, so that neighbours read neighbours of w: four columns each where w is [PAGES, K, N],
// four steps of K each where it is [PAGES, N, K]. The parts meet once in workgroup memory. An idx outside reads nothing
// and makes a row of zeros.
var<workgroup> parts: array<vec4<f32>, 256>;

// Four columns from n on in step k; zero outside.
fn four_columns(matrix: u32, k: u32, n: u32) -> vec4<f32> {
    let at = matrix + k * N + n;
    if (W_ALIGNED == 1u) {
        return w_four(at);
    }
    var found = vec4<f32>();
    for (var q = 0u; q < 4u; q++) { if (n + q < N) { found[q] = w_at(at + q); } }
    return found;
}

// Four steps of K from k on, of x or of one column of w; zero outside.
fn four_of_x(source: u32, k: u32) -> vec4<f32> {
    if (W_ALIGNED == 1u) {
        return x_four(source + k);
    }
    var found = vec4<f32>();
    for (var q = 0u; q < 4u; q++) { if (k + q < K) { found[q] = x_at(source + k + q); } }
    return found;
}

fn four_steps(matrix: u32, k: u32, n: u32) -> vec4<f32> {
    let at = matrix + n * K + k;
    if (n >= N) {
        return vec4<f32>();
    }
    if (W_ALIGNED == 1u) {
        return w_four(at);
    }
    var found = vec4<f32>();
    for (var q = 0u; q < 4u; q++) { if (k + q < K) { found[q] = w_at(at + q); } }
    return found;
}

// Of columns first + 4 lane % 16 … + 3, every 16th step of K.
fn across_columns(matrix: u32, source: u32, first: u32, lane: u32) -> vec4<f32> {
    let n = first + lane % 16u * 4u;
    var total = vec4<f32>();
    if (n < N) {
        for (var k = lane / 16u; k < K; k += 16u) {
            total += x_at(source + k) * four_columns(matrix, k, n);
        }
    }
    return total;
}

// Of columns first + lane / 16 + 0, 16, 32, 48, every 16th four steps of K.
fn along_steps(matrix: u32, source: u32, first: u32, lane: u32) -> vec4<f32> {
    let n = first + lane / 16u;
    var total = vec4<f32>();
    for (var k = lane % 16u * 4u; k < K; k += 64u) {
        let x = four_of_x(source, k);
        total += vec4<f32>(
            dot(x, four_steps(matrix, k, n)),
            dot(x, four_steps(matrix, k, n + 16u)),
            dot(x, four_steps(matrix, k, n + 32u)),
            dot(x, four_steps(matrix, k, n + 48u)),
        );
    }
    return total;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let across = (N + 63u) / 64u;
    let flat = (group.z * groups.y + group.y) * groups.x + group.x;
    if (flat >= UNITS) {
        return;
    }
    let row = flat / across;
    let first = flat % across * 64u;
    let page = page_of(idx_at(row));
    var total = vec4<f32>();
    if (page < PAGES) {
        let matrix = page * (K * N);
        let source = row / REPEAT * K;
        if (W_K == 1u) {
            total = along_steps(matrix, source, first, lane);
        } else {
            total = across_columns(matrix, source, first, lane);
        }
    }
    parts[lane] = total;
    workgroupBarrier();
    if (lane < 16u && page <= PAGES) {
        var sum = vec4<f32>();
        for (var part = 0u; part < 16u; part++) {
            sum += parts[select(part * 16u + lane, lane * 16u + part, W_K == 1u)];
        }
        for (var q = 0u; q < 4u; q++) {
            let n = first + select(lane * 4u + q, lane + q * 16u, W_K == 1u);
            if (n < N) {
                store(row * N + n, sum[q]);
            }
        }
    }
}
