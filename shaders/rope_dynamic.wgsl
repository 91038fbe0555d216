// Row i stands at position i + the one element of `offset`.
fn position(row: u32) -> u32 {
    return row + offset_at(0u);
}
