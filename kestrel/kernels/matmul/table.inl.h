// The table of an instruction set, from the tiles included before.

template <int... kIndex>
TileTable MakeTable(std::integer_sequence<int, kIndex...>) {
  TileTable t;
  t.max_rows = sizeof...(kIndex);
  t.decode = DecodeBlock;
  t.quantize = Quantize;
  (FillFmaRows<kIndex + 1>(t), ...);
  (FillInt16Rows<kIndex + 1>(t), ...);
  (FillExactRows<kIndex + 1>(t), ...);
  return t;
}
