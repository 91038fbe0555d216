// Rows of x, each times the matrix of w that its idx names: one invocation sums four neighbouring columns of one row over
// all of K. An idx outside reads nothing and makes a row of zeros. w is [PAGES, K, N], or [PAGES, N, K] where W_K is 1.
fn four_of_w(at: u32, columns: u32) -> vec4<f32> {
    if (W_ALIGNED == 1u && W_N == 1u) {
        return w_four(at);
    }
    return vec4<f32>(
        w_at(at),
        w_at(at + min(1u, columns) * W_N),
        w_at(at + min(2u, columns) * W_N),
        w_at(at + min(3u, columns) * W_N),
    );
}

fn unit(u: u32) {
    let across = (N + 3u) / 4u;
    let row = u / across;
    let n = u % across * 4u;
    let last = min(N - 1u - n, 3u);
    let source = row / REPEAT * K;
    let page = page_of(idx_at(row));
    if (page > PAGES) {
        return;
    }
    var total = vec4<f32>();
    if (page < PAGES) {
        let matrix = page * (K * N) + n * W_N;
        if (W_ALIGNED == 1u && W_K == 1u) {
            for (var k = 0u; k < K; k += 4u) {
                let x = x_four(source + k);
                let at = matrix + k;
                total += vec4<f32>(
                    dot(x, w_four(at)),
                    dot(x, w_four(at + min(1u, last) * K)),
                    dot(x, w_four(at + min(2u, last) * K)),
                    dot(x, w_four(at + min(3u, last) * K)),
                );
            }
        } else {
            for (var k = 0u; k < K; k++) {
                total += x_at(source + k) * four_of_w(matrix + k * W_K, last);
            }
        }
    }
    for (var q = 0u; q <= last; q++) {
        store(row * N + n + q, total[q]);
    }
}
