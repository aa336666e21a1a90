package fhir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"
)

// Edit replaces one string of a resource's JSON: a urn:uuid by the reference it
// stands for.
type Edit struct {
	// Old is the inside of the string as it stands in the JSON, a part of the
	// bytes handed to Splice.
	Old []byte
	New string // unescaped
}

// Body is the client's JSON prepared for storage: without white space, without the elements that the server decides
// (id, meta.versionId, meta.lastUpdated), in the client's order. It does not change, and Render may be called
// again with another version.
type Body struct {
	resourceType string
	meta         []byte // further properties of meta, each with a leading comma
	rest         []byte // further properties of the resource, each with a leading comma
}

// Splice makes a Body of raw, which must be a JSON object that Decode accepted.
// Everything but id, meta.versionId and meta.lastUpdated is kept to the byte,
// white space between tokens and the edited strings excepted. Edits may come in
// any order and must not overlap.
func Splice(raw []byte, edits []Edit) (*Body, error) {
	s := splicer{data: raw}
	if len(edits) > 0 {
		s.edits = slices.Clone(edits)
		slices.SortFunc(s.edits, func(a, b Edit) int { return s.offset(a) - s.offset(b) })
	}
	b := &Body{}
	room := splicing.Get().(*[]byte)
	rest := slices.Grow((*room)[:0], len(raw)) // much more than is left of it where it is written in lines
	s.space()
	if !s.at('{') {
		return nil, errSplice
	}
	for s.space(); s.at('"'); s.space() {
		s.pos--
		key := s.key()
		switch key {
		case "resourceType":
			from := s.pos
			s.copyValue(nil)
			b.resourceType = string(s.data[from+1 : s.pos-1])
		case "id":
			s.copyValue(nil)
		case "meta":
			s.meta(b)
		default:
			rest = append(rest, ',', '"')
			rest = append(rest, key...)
			rest = append(rest, '"', ':')
			rest = s.copyValue(rest)
		}
		if s.space(); !s.at(',') {
			break
		}
	}
	b.rest = append(b.rest, rest...)
	if *room = rest; cap(rest) <= mostSpliced {
		splicing.Put(room)
	}
	if s.failed || s.pos > len(raw) {
		return nil, errSplice
	}
	return b, nil
}

// splicing has the room in which bodies are put together, of mostSpliced bytes at most.
var splicing = sync.Pool{New: func() any { return new([]byte) }}

const mostSpliced = 64 << 10

var errSplice = fmt.Errorf("fhir: Splice of text that is not a JSON object")

// Render appends the JSON as it is stored and served.
func (b *Body) Render(dst []byte, id string, versionID int, lastUpdated time.Time) []byte {
	dst = slices.Grow(dst, len(b.resourceType)+len(id)+len(b.meta)+len(b.rest)+100)
	dst = append(dst, `{"resourceType":"`...)
	dst = append(dst, b.resourceType...)
	dst = append(dst, `","id":"`...)
	dst = append(dst, id...)
	dst = append(dst, `","meta":{"versionId":"`...)
	dst = strconv.AppendInt(dst, int64(versionID), 10)
	dst = append(dst, `","lastUpdated":"`...)
	dst = AppendInstant(dst, lastUpdated)
	dst = append(dst, '"')
	dst = append(dst, b.meta...)
	dst = append(dst, '}')
	dst = append(dst, b.rest...)
	return append(dst, '}')
}

// Equals reports whether a version has the same JSON, but for meta.versionId and meta.lastUpdated.
// The order of properties and the escapes of strings make no difference; the digits of numbers do.
func (b *Body) Equals(v Version) bool {
	text := b.Render(nil, v.ID, v.VersionID, v.LastUpdated)
	if bytes.Equal(text, v.Body) {
		return true
	}
	own, ok := comparableJSON(text)
	if !ok {
		return false
	}
	other, ok := comparableJSON(v.Body)
	return ok && reflect.DeepEqual(own, other)
}

// comparableJSON is a resource as a value, without meta.versionId and meta.lastUpdated.
func comparableJSON(text []byte) (map[string]any, bool) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var value map[string]any
	if d.Decode(&value) != nil {
		return nil, false
	}
	if meta, ok := value["meta"].(map[string]any); ok {
		delete(meta, "versionId")
		delete(meta, "lastUpdated")
	}
	return value, true
}

// AppendInstant appends t as an instant in UTC with milliseconds.
func AppendInstant(dst []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(dst, "2006-01-02T15:04:05.000Z")
}

// Property returns the value of a property of raw, which must be a JSON object that Decode
// accepted, or a part of one; nil where there is none. It is a part of raw.
func Property(raw []byte, name string) []byte {
	s := splicer{data: raw}
	s.space()
	if !s.at('{') {
		return nil
	}
	for s.space(); s.at('"'); s.space() {
		s.pos--
		key := s.key()
		from := s.pos
		s.skipValue()
		if s.failed || s.pos > len(raw) {
			return nil
		}
		if key == name || strings.Contains(key, `\`) && unescaped(key) == name {
			return raw[from:s.pos]
		}
		if s.space(); !s.at(',') {
			break
		}
	}
	return nil
}

// unescaped is the text that the inside of a JSON string stands for.
func unescaped(inside string) (text string) {
	_ = json.Unmarshal([]byte(`"`+inside+`"`), &text) // Decode has read it
	return text
}

// splicer copies JSON that is known to be well formed.
type splicer struct {
	data   []byte
	pos    int
	edits  []Edit
	failed bool
}

func (s *splicer) offset(e Edit) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(e.Old))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.data))))
}

func (s *splicer) space() {
	for s.pos < len(s.data) && (s.data[s.pos] == ' ' || s.data[s.pos] == '\n' || s.data[s.pos] == '\r' || s.data[s.pos] == '\t') {
		s.pos++
	}
}

// at steps over c when it is next.
func (s *splicer) at(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

// stringEnd returns the position behind the string that starts at pos.
func (s *splicer) stringEnd() int {
	for i := s.pos + 1; i < len(s.data); i++ {
		switch s.data[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	s.failed = true
	return len(s.data)
}

// key reads a property name and the colon behind it.
func (s *splicer) key() string {
	end := s.stringEnd()
	if s.failed {
		return ""
	}
	key := unsafe.String(&s.data[s.pos], end-s.pos)
	s.pos = end
	s.space()
	if !s.at(':') {
		s.failed = true
	}
	s.space()
	return key[1 : len(key)-1]
}

func (s *splicer) meta(b *Body) {
	if !s.at('{') {
		s.failed = true
		return
	}
	for s.space(); s.at('"'); s.space() {
		s.pos--
		key := s.key()
		switch key {
		case "versionId", "lastUpdated", "_versionId", "_lastUpdated":
			s.copyValue(nil)
		default:
			b.meta = append(b.meta, ',', '"')
			b.meta = append(b.meta, key...)
			b.meta = append(b.meta, '"', ':')
			b.meta = s.copyValue(b.meta)
		}
		if s.space(); !s.at(',') {
			break
		}
	}
	if s.space(); !s.at('}') {
		s.failed = true
	}
}

// copyValue appends the value at pos to dst without its white space.
func (s *splicer) copyValue(dst []byte) []byte {
	depth := 0
	for s.pos < len(s.data) && !s.failed {
		switch c := s.data[s.pos]; c {
		case '"':
			dst = s.copyString(dst)
		case '{', '[':
			depth++
			dst = append(dst, c)
			s.pos++
		case '}', ']':
			if depth == 0 {
				return dst
			}
			depth--
			dst = append(dst, c)
			s.pos++
		case ',':
			if depth == 0 {
				return dst
			}
			dst = append(dst, c)
			s.pos++
		case ' ', '\n', '\r', '\t':
			s.space()
			continue
		default: // a colon, a number, a literal: up to where it can end
			from := s.pos
			for s.pos++; s.pos < len(s.data); s.pos++ {
				if c := s.data[s.pos]; c <= ' ' || c == ',' || c == '}' || c == ']' || c == '"' || c == '{' || c == '[' {
					break
				}
			}
			dst = append(dst, s.data[from:s.pos]...)
			if s.data[from] == ':' {
				continue
			}
		}
		if depth == 0 {
			return dst
		}
	}
	return dst
}

// skipValue steps over the value at pos.
func (s *splicer) skipValue() {
	for depth := 0; s.pos < len(s.data) && !s.failed; {
		switch s.data[s.pos] {
		case '"':
			s.pos = s.stringEnd()
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			if depth == 0 {
				return
			}
			depth--
			s.pos++
		case ',':
			if depth == 0 {
				return
			}
			s.pos++
		default: // a part of a number or literal, a colon, white space
			s.pos++
			continue
		}
		if depth == 0 {
			return
		}
	}
}

func (s *splicer) copyString(dst []byte) []byte {
	from, end := s.pos, s.stringEnd()
	s.pos = end
	for len(s.edits) > 0 && s.offset(s.edits[0]) <= from {
		s.edits = s.edits[1:] // of a property that is not kept
	}
	// A narrative may hold several edits inside one string.
	for len(s.edits) > 0 && s.offset(s.edits[0]) < end {
		e := s.edits[0]
		s.edits = s.edits[1:]
		at := s.offset(e)
		dst = append(dst, s.data[from:at]...)
		dst = appendEscaped(dst, e.New)
		from = at + len(e.Old)
	}
	return append(dst, s.data[from:end]...)
}
