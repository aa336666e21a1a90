package recent

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"

	"kiln/server/search/match"
)

// The limits of the results in number and age.
const (
	maxEntries = 4096
	maxAge     = time.Minute
)

// Key identifies a statement with its arguments. Two searches with the same clauses have the same statement that
// counts.
type Key [16]byte

// KeyOf returns the key of a statement.
func KeyOf(st match.Statement) Key {
	h := sha256.New()
	h.Write([]byte(st.SQL))
	var buf []byte
	for _, a := range st.Args {
		switch a := a.(type) {
		case int64:
			buf = binary.BigEndian.AppendUint64(append(buf, 'i'), uint64(a))
		case []int64:
			buf = append(buf, 'I')
			for _, v := range a {
				buf = binary.BigEndian.AppendUint64(buf, uint64(v))
			}
		default:
			buf = fmt.Appendf(append(buf, 'v'), "%q", a)
		}
		buf = append(buf, 0)
	}
	h.Write(buf)
	var k Key
	copy(k[:], h.Sum(nil))
	return k
}
