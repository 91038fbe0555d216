// Every new row is written.
fn written() -> u32 {
    return NEW;
}
