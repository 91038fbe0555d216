// Query i stands at position pos + i and sees the keys up to there, the last WINDOW of them where that is given; queries
// from `valid` on do not stand anywhere.
fn first_key(query: u32) -> u32 {
    let end = end_key(query);
    if (WINDOW > 0u && end > WINDOW) {
        return end - WINDOW;
    }
    return 0u;
}

fn end_key(query: u32) -> u32 {
    return min(min(pos_at(0u), KEYS - 1u) + query, KEYS - 1u) + 1u;
}

fn stands(query: u32) -> bool {
    return query < valid_at(0u);
}
