// Products of GROUPS pairs of matrices on a software adapter: one invocation sums a 4 x 8 tile of one product in registers,
// straight from memory.
fn four_of_a(base: u32, m: u32, k: u32) -> vec4<f32> {
    let at = base + k * A_K;
    return vec4<f32>(
        a_at(at + m * A_M),
        a_at(at + min(m + 1u, M - 1u) * A_M),
        a_at(at + min(m + 2u, M - 1u) * A_M),
        a_at(at + min(m + 3u, M - 1u) * A_M),
    );
}

fn four_of_b(base: u32, n: u32, k: u32) -> vec4<f32> {
    let at = base + k * B_K;
    return vec4<f32>(
        b_at(at + min(n, N - 1u) * B_N),
        b_at(at + min(n + 1u, N - 1u) * B_N),
        b_at(at + min(n + 2u, N - 1u) * B_N),
        b_at(at + min(n + 3u, N - 1u) * B_N),
    );
}

fn write(base: u32, m: u32, n: u32, values: vec4<f32>) {
    if (m < M) {
        for (var q = 0u; q < 4u; q++) { if (n + q < N) { store(base + m * C_M + n + q, values[q]); } }
    }
}

fn unit(u: u32) {
    let across = (N + 7u) / 8u;
    let tiles = across * ((M + 3u) / 4u);
    let m = u % tiles / across * 4u;
    let n = u % tiles % across * 8u;
    let base_a = u / tiles * A_G;
    let base_b = u / tiles * B_G;
    var left = mat4x4<f32>();
    var right = mat4x4<f32>();
    for (var k = 0u; k < K; k++) {
        let four_a = four_of_a(base_a, m, k);
        let low = four_of_b(base_b, n, k);
        let high = four_of_b(base_b, n + 4u, k);
        left += mat4x4<f32>(four_a.x * low, four_a.y * low, four_a.z * low, four_a.w * low);
        right += mat4x4<f32>(four_a.x * high, four_a.y * high, four_a.z * high, four_a.w * high);
    }
    let base = u / tiles * C_G;
    for (var r = 0u; r < 4u; r++) {
        write(base, m + r, n, left[r]);
        write(base, m + r, n + 4u, right[r]);
    }
}
