// Sums of outer products of rows of x and g by the number that idx gives a row: one invocation computes 4 x 4 of one matrix of
// the result [EXPERTS, K, N], in the order of rows. Rows of another number are looked at, not read.
fn four_of_x(row: u32, k: u32) -> vec4<f32> {
    let last = K - 1u;
    let at = row * K;
    return vec4<f32>(
        x_at(at + k),
        x_at(at + min(k + 1u, last)),
        x_at(at + min(k + 2u, last)),
        x_at(at + min(k + 3u, last)),
    );
}

fn four_of_g(row: u32, n: u32) -> vec4<f32> {
    let last = N - 1u;
    let at = row * N;
    return vec4<f32>(
        g_at(at + n),
        g_at(at + min(n + 1u, last)),
        g_at(at + min(n + 2u, last)),
        g_at(at + min(n + 3u, last)),
    );
}

fn unit(u: u32) {
    let across = (N + 3u) / 4u;
    let tiles = across * ((K + 3u) / 4u);
    let expert = u / tiles;
    let k = u % tiles / across * 4u;
    let n = u % tiles % across * 4u;
    var total = mat4x4<f32>();
    for (var row = 0u; row < ROWS; row++) {
        if (idx_at(row) == expert) {
            let x = four_of_x(row, k);
            let g = four_of_g(row, n);
            total += mat4x4<f32>(x.x * g, x.y * g, x.z * g, x.w * g);
        }
    }
    for (var r = 0u; r < min(K - k, 4u); r++) {
        for (var q = 0u; q < min(N - n, 4u); q++) {
            store((expert * K + k + r) * N + n + q, total[r][q]);
        }
    }
}
