// Row i stands at position `positions[i]`.
fn position(row: u32) -> u32 {
    return positions_at(row);
}
