// Row i stands at position i + `offset[0]`.
fn position(row: u32) -> u32 {
    return row + offset_at(0u);
}
