// Four elements of a value from c on, or of a `second` one, 0 beyond the end of the head; and four of a result, or of the
// `second` result, of which only gradients of keys have one.
fn value_or_zero(column: u32, head: u32, c: u32, second: bool) -> vec4<f32> {
    if (c >= D) {
        return vec4<f32>();
    }
    if (second) {
        return second_value4(min(column, COLUMNS - 1u), head, c);
    }
    return value4(min(column, COLUMNS - 1u), head, c);
}

fn write_row(row: u32, head: u32, c: u32, values: vec4<f32>, second: bool) {
    if (row < OWN_ROWS) {
        let at = (row * OWN_HEADS + head) * D + c;
        for (var q = 0u; q < 4u; q++) {
            if (c + q < D && second) {
                store_values(at + q, values[q]);
            } else if (c + q < D) {
                store(at + q, values[q]);
            }
        }
    }
}
