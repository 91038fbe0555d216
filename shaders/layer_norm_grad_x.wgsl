// A row of x and of h = g * w, WIDTH elements each: the sums of x, of its squares about the mean, of h and of both
// together, then every element.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let mean = mean_of_row(row, part);
    let size = size_of_row(row, part, mean);
    var lifts = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        lifts += g_at(first + c) * w_at(c);
    }
    let lift = sum_of_unit(lifts) / f32(WIDTH);
    var products = 0.0;
    for (var c = part; c < WIDTH; c += LANES) {
        products += (x_at(first + c) - mean) * g_at(first + c) * w_at(c);
    }
    let shared_part = sum_of_unit(products) / f32(WIDTH) * size * size;
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, (g_at(first + c) * w_at(c) - lift - (x_at(first + c) - mean) * shared_part) * size);
        }
    }
}
