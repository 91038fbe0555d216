// The factor 1 / sqrt(mean of squares + eps) of each row.
fn unit(row: u32, part: u32, live: bool) {
    let size = size_of_row(row, part);
    if (live && part == 0u) {
        store(row, size);
    }
}
