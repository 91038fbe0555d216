// Every query sees the keys 0 .. pos.
fn first_key(query: u32) -> u32 {
    return 0u;
}

fn end_key(query: u32) -> u32 {
    return min(pos_at(0u), KEYS - 1u) + 1u;
}

fn stands(query: u32) -> bool {
    return true;
}
