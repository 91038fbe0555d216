// The gradient of a convolution to its kernels, in each group: rows are output channels, columns the elements of a window,
// steps the pixels of the result.
// Another file adds the products up: product_registers.wgsl or product_tiles.wgsl.
struct Column { channel: u32, y: u32, x: u32 }

fn row_of(group: u32, row: u32) -> u32 {
    return (group * OUT + row) * (OH * OW);
}

// What lies before the image wraps to large numbers.
fn column_of(group: u32, column: u32) -> Column {
    let channel = group * IN + column / (KH * KW);
    return Column(channel * (H * W), column / KW % KH * DH - PH, column % KW * DW - PW);
}

fn left(row: u32, k: u32) -> f32 {
    return g_at(row + k / (OH * OW) * (CO * OH * OW) + k % (OH * OW));
}

fn left4(row: u32, k: u32) -> vec4<f32> {
    if (OH * OW % 4u == 0u) {
        return g_four(row + k / (OH * OW) * (CO * OH * OW) + k % (OH * OW));
    }
    return vec4<f32>(left(row, k), left(row, k + 1u), left(row, k + 2u), left(row, k + 3u));
}

fn right(column: Column, k: u32) -> f32 {
    let y = column.y + k / OW % OH * SH;
    let x = column.x + k % OW * SW;
    let inside = y < H && x < W;
    return select(0.0, x_at(select(0u, column.channel + k / (OH * OW) * (CI * H * W) + y * W + x, inside)), inside);
}

fn right4(column: Column, k: u32) -> vec4<f32> {
    return vec4<f32>(right(column, k), right(column, k + 1u), right(column, k + 2u), right(column, k + 3u));
}

fn place(group: u32, row: u32, column: u32) -> u32 {
    return (group * OUT + row) * COLUMNS + column;
}
