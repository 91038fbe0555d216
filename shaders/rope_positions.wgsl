// Row i stands at the position that `positions` says.
fn position(row: u32) -> u32 {
    return positions_at(row);
}
