// One row of the result [.., WIDTH]: first the span of COUNT indices in which its number occurs, then the sum of the rows of
// src that bear it, in order, four indices and four elements at a time. Most rows of a vocabulary bear none and only write
// zeros.
fn unit(row: u32, part: u32, live: bool) {
    var first = 0.0;
    var last = 0.0;
    for (var s = part; s < COUNT; s += LANES) {
        if (idx_at(s) == row) {
            first = max(first, f32(COUNT - s));
            last = f32(s + 1u);
        }
    }
    let start = COUNT - u32(max_of_unit(first));
    let stop = u32(max_of_unit(last));
    if (live) {
        for (var c = part; c < WIDTH; c += 4u * LANES) {
            let columns = min(c + vec4<u32>(0u, 1u, 2u, 3u) * LANES, vec4<u32>(WIDTH - 1u));
            var total = vec4<f32>();
            for (var s = start; s < stop; s += 4u) {
                let x = idx_at(s) == row;
                let y = s + 1u < stop && idx_at(min(s + 1u, COUNT - 1u)) == row;
                let z = s + 2u < stop && idx_at(min(s + 2u, COUNT - 1u)) == row;
                let w = s + 3u < stop && idx_at(min(s + 3u, COUNT - 1u)) == row;
                if (x) {
                    total += elements(s, columns);
                }
                if (y) {
                    total += elements(s + 1u, columns);
                }
                if (z) {
                    total += elements(s + 2u, columns);
                }
                if (w) {
                    total += elements(s + 3u, columns);
                }
            }
            for (var k = 0u; k < 4u; k++) {
                if (c + k * LANES < WIDTH) {
                    store(row * WIDTH + c + k * LANES, total[k]);
                }
            }
        }
    }
}

fn elements(s: u32, columns: vec4<u32>) -> vec4<f32> {
    let at = s * WIDTH + columns;
    return vec4<f32>(src_at(at.x), src_at(at.y), src_at(at.z), src_at(at.w));
}
