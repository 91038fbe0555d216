// Four elements of a factor from c on, 0 beyond the end of the head.
fn row_or_zero(row: u32, head: u32, c: u32) -> vec4<f32> {
    if (c >= D) {
        return vec4<f32>();
    }
    return row4(min(row, OWN_ROWS - 1u), head, c);
}

fn column_or_zero(column: u32, head: u32, c: u32) -> vec4<f32> {
    if (c >= D) {
        return vec4<f32>();
    }
    return column4(min(column, COLUMNS - 1u), head, c);
}
