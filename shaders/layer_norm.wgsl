// A row of WIDTH elements: the sum, the sum of squares about the mean, then every element. It is read three times.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let mean = mean_of_row(row, part);
    let size = size_of_row(row, part, mean);
    if (live && part == 0u) {
        store_mean(row, mean);
        store_size(row, size);
    }
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, (x_at(first + c) - mean) * size * w_at(c) + b_at(c));
        }
    }
}
