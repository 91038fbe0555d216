// The gradient of a convolution to its images, in each group: rows are input channels, columns pixels of the image, steps
// the output channels and the places of the window: a pixel gathers from every window that has it there.
// Another file adds the products up: product_registers.wgsl or product_tiles.wgsl.
struct Column { image: u32, y: u32, x: u32 }

fn row_of(group: u32, row: u32) -> u32 {
    return (group * OUT * IN + row) * (KH * KW);
}

fn column_of(group: u32, column: u32) -> Column {
    let image = (column / (H * W) * CO + group * OUT) * (OH * OW);
    return Column(image, column / W % H + PH, column % W + PW);
}

fn left(row: u32, k: u32) -> f32 {
    return k_at(row + k / (KH * KW) * (IN * KH * KW) + k % (KH * KW));
}

fn left4(row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(left(row, k), left(row, k + 1u), left(row, k + 2u), left(row, k + 3u));
}

// Windows begin at multiples of the stride; what lies before the first one wraps to large numbers.
fn right(column: Column, k: u32) -> f32 {
    let y = column.y - k / KW % KH * DH;
    let x = column.x - k % KW * DW;
    let inside = y % SH == 0u && x % SW == 0u && y / SH < OH && x / SW < OW;
    let at = column.image + k / (KH * KW) * (OH * OW) + y / SH * OW + x / SW;
    return select(0.0, g_at(select(0u, at, inside)), inside);
}

fn right4(column: Column, k: u32) -> vec4<f32> {
    return vec4<f32>(right(column, k), right(column, k + 1u), right(column, k + 2u), right(column, k + 3u));
}

fn place(group: u32, row: u32, column: u32) -> u32 {
    return (column / (H * W) * CI + group * IN + row) * (H * W) + column % (H * W);
}
