// One row of the result [.., WIDTH]: first the span of COUNT indices in which its number occurs, then the sum of the rows of
// src that bear it, in order. Most rows of a vocabulary bear none and only write zeros.
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
        for (var c = part; c < WIDTH; c += LANES) {
            var total = 0.0;
            for (var s = start; s < stop; s++) {
                if (idx_at(s) == row) {
                    total += src_at(s * WIDTH + c);
                }
            }
            store(row * WIDTH + c, total);
        }
    }
}
