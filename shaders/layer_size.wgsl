// The factor 1 / sqrt(variance + eps) of each row.
fn unit(row: u32, part: u32, live: bool) {
    let size = size_of_row(row, part, mean_of_row(row, part));
    if (live && part == 0u) {
        store(row, size);
    }
}
