// A row of WIDTH elements: the sum of squares, then every element. It is read twice.
fn unit(row: u32, part: u32, live: bool) {
    let first = row * WIDTH;
    let size = size_of_row(row, part);
    if (live && part == 0u) {
        store_size(row, size);
    }
    if (live) {
        for (var c = part; c < WIDTH; c += LANES) {
            store(first + c, x_at(first + c) * size * w_at(c));
        }
    }
}
