// Row i stands at position i + OFFSET.
fn position(row: u32) -> u32 {
    return row + OFFSET;
}
