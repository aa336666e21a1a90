package format

import (
	"io"
	"math/big"
	"slices"

	"github.com/parquet-go/parquet-go"

	"kiln/server/fhirpath"
	"kiln/server/view"
)

// Limits of a row group, which is kept in memory until it is written.
const (
	groupRows  = 100_000
	groupBytes = 6 << 20   // of values
	firstBytes = 256 << 10 // of the first row group, so that the first bytes leave soon; each later one may have four times as many
	batchRows  = 128       // rows that are handed over together
)

// orderedGroup is a group whose fields keep their order; parquet.Group sorts them by name.
type orderedGroup struct {
	parquet.Group
	names []string
}

// Fields returns the fields in the order of names.
func (g orderedGroup) Fields() []parquet.Field {
	fields := g.Group.Fields()
	slices.SortFunc(fields, func(a, b parquet.Field) int {
		return slices.Index(g.names, a.Name()) - slices.Index(g.names, b.Name())
	})
	return fields
}

// parquetWriter writes rows as a Parquet file.
type parquetWriter struct {
	w        *parquet.GenericWriter[any]
	columns  []view.Column
	storages []view.Storage
	rows     []parquet.Row
	n        int    // of rows that are not handed over yet
	group    int    // rows of the row group
	bytes    int    // of its values
	limit    int    // of bytes
	arena    []byte // the bytes of the rows that are not handed over yet
}

func newParquet(w io.Writer, columns []view.Column, _ Options) Writer {
	p := &parquetWriter{columns: columns, rows: make([]parquet.Row, batchRows), limit: firstBytes}
	g := orderedGroup{Group: parquet.Group{}}
	for i := range columns {
		c := &columns[i]
		storage := c.Storage()
		p.storages = append(p.storages, storage)
		node := parquetNode(c, storage)
		if c.Collection {
			node = parquet.List(node)
		}
		g.Group[c.Name] = parquet.Optional(node)
		g.names = append(g.names, c.Name)
	}
	p.w = parquet.NewGenericWriter[any](w, parquet.NewSchema("view", g), parquet.Compression(&parquet.Snappy), parquet.CreatedBy("kiln", "0.1.0", ""),
		parquet.PageBufferSize(128<<10), parquet.WriteBufferSize(4<<10), parquet.DataPageStatistics(true))
	return p
}

func parquetNode(c *view.Column, storage view.Storage) parquet.Node {
	switch storage {
	case view.StoreBoolean:
		return parquet.Leaf(parquet.BooleanType)
	case view.StoreInt16:
		return parquet.Int(16)
	case view.StoreInt32:
		return parquet.Int(32)
	case view.StoreInt64:
		return parquet.Int(64)
	case view.StoreReal:
		return parquet.Leaf(parquet.FloatType)
	case view.StoreDouble:
		return parquet.Leaf(parquet.DoubleType)
	case view.StoreDate:
		return parquet.Date()
	case view.StoreTimestamp:
		return parquet.Timestamp(parquet.Microsecond)
	case view.StoreBytes:
		return parquet.Leaf(parquet.ByteArrayType)
	case view.StoreDecimal:
		return parquet.Decimal(c.SQL.Scale, c.SQL.Precision, decimalType(c.SQL.Precision))
	}
	return parquet.String()
}

// decimalType is the physical type of a DECIMAL.
func decimalType(precision int) parquet.Type {
	switch {
	case precision <= 9:
		return parquet.Int32Type
	case precision <= 18:
		return parquet.Int64Type
	}
	return parquet.FixedLenByteArrayType(16)
}

func (p *parquetWriter) Write(row view.Row) error {
	out := p.rows[p.n][:0]
	for i := range row {
		c, cell := &p.columns[i], &row[i]
		switch {
		case !cell.Set:
			out = append(out, parquet.NullValue().Level(0, 0, i))
		case !c.Collection:
			v, err := p.value(c, i, cell.Value)
			if err != nil {
				return err
			}
			out = append(out, v.Level(0, 1, i))
		case len(cell.List) == 0:
			out = append(out, parquet.NullValue().Level(0, 1, i))
		default:
			for k := range cell.List {
				v, err := p.value(c, i, cell.List[k])
				if err != nil {
					return err
				}
				out = append(out, v.Level(min(k, 1), 2, i))
			}
		}
	}
	p.rows[p.n] = out
	p.n++
	p.group++
	if p.n < batchRows && p.bytes < p.limit {
		return nil
	}
	if err := p.flush(); err != nil {
		return err
	}
	if p.group >= groupRows || p.bytes >= p.limit {
		p.group, p.bytes, p.limit = 0, 0, min(4*p.limit, groupBytes)
		return p.w.Flush()
	}
	return nil
}

func (p *parquetWriter) flush() error {
	_, err := p.w.WriteRows(p.rows[:p.n])
	p.n, p.arena = 0, p.arena[:0]
	return err
}

// Close writes the last row group and the footer.
func (p *parquetWriter) Close() error {
	if err := p.flush(); err != nil {
		return err
	}
	return p.w.Close()
}

// value returns a value in the form of its column.
func (p *parquetWriter) value(c *view.Column, i int, v fhirpath.Value) (parquet.Value, error) {
	storage := p.storages[i]
	s, err := c.Store(storage, v)
	if err != nil {
		return parquet.Value{}, &ValueError{Column: c.Name, Reason: err.Error()}
	}
	p.bytes += 8
	switch storage {
	case view.StoreBoolean:
		return parquet.BooleanValue(s.Int == 1), nil
	case view.StoreInt16, view.StoreInt32, view.StoreDate:
		return parquet.Int32Value(int32(s.Int)), nil
	case view.StoreInt64, view.StoreTimestamp:
		return parquet.Int64Value(s.Int), nil
	case view.StoreReal:
		return parquet.FloatValue(float32(s.Float)), nil
	case view.StoreDouble:
		return parquet.DoubleValue(s.Float), nil
	case view.StoreBytes:
		p.bytes += len(s.Bytes)
		return parquet.ByteArrayValue(s.Bytes), nil
	case view.StoreDecimal:
		unscaled := s.Digits.Coeff.MathBigInt()
		if s.Digits.Negative {
			unscaled.Neg(unscaled)
		}
		switch {
		case c.SQL.Precision <= 9:
			return parquet.Int32Value(int32(unscaled.Int64())), nil
		case c.SQL.Precision <= 18:
			return parquet.Int64Value(unscaled.Int64()), nil
		}
		return parquet.FixedLenByteArrayValue(twosComplement(unscaled)), nil
	}
	start := len(p.arena)
	p.arena = append(p.arena, s.Text...)
	p.bytes += len(s.Text)
	return parquet.ByteArrayValue(p.arena[start:]), nil
}

// twosComplement is a number of up to 127 bits, big-endian in 16 bytes.
func twosComplement(n *big.Int) []byte {
	out := make([]byte, 16)
	if n.Sign() < 0 {
		n = new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), 128))
	}
	return n.FillBytes(out)
}
