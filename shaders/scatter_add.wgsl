// One element of the result [.., WIDTH]: the sum of src [COUNT, WIDTH] over the rows whose idx is its row. COUNT indices are
// read for every element.
fn unit(i: u32, part: u32, live: bool) {
    var total = 0.0;
    for (var s = part; s < COUNT; s += LANES) {
        if (idx_at(s) == i / WIDTH) {
            total += src_at(s * WIDTH + i % WIDTH);
        }
    }
    total = sum_of_unit(total);
    if (live && part == 0u) {
        store(i, total);
    }
}
