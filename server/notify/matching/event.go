package matching

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// A Kind is the kind of an event: the letter that the queue stores.
type Kind byte

// The kinds of events.
const (
	Create Kind = 'C'
	Update Kind = 'U'
	Delete Kind = 'D'
	VRead  Kind = 'V'
)

// Kinds are a set of kinds.
type Kinds uint8

// AllKinds contains create, update, delete and vread.
const AllKinds Kinds = 1<<4 - 1

func (k Kind) bit() Kinds {
	return 1 << strings.IndexByte("CUDV", byte(k))
}

// KindsOf returns a set of kinds.
func KindsOf(list ...Kind) (s Kinds) {
	for _, k := range list {
		s |= k.bit()
	}
	return s
}

// Has reports whether k is in the set.
func (s Kinds) Has(k Kind) bool { return s&k.bit() != 0 }

// String returns the name of the kind in the specification.
func (k Kind) String() string {
	switch k {
	case Create:
		return "create"
	case Update:
		return "update"
	case Delete:
		return "delete"
	}
	return "vread"
}

// PastTense returns the name of the kind in server-sent events.
func (k Kind) PastTense() string {
	switch k {
	case Create:
		return "created"
	case Update:
		return "updated"
	case Delete:
		return "deleted"
	}
	return "viewed"
}

// ParseKinds reads names of kinds. No names are all kinds. It fails with invalid, 400.
func ParseKinds(names []string) (Kinds, error) {
	var s Kinds
	for _, name := range names {
		switch name {
		case "create":
			s |= Create.bit()
		case "update":
			s |= Update.bit()
		case "delete":
			s |= Delete.bit()
		case "vread":
			s |= VRead.bit()
		default:
			return 0, outcome.Invalid("%q is no event: expected create, update, delete or vread", outcome.Clip(name))
		}
	}
	if s == 0 {
		s = AllKinds
	}
	return s, nil
}

// Names returns the names of the kinds in the specification.
func (s Kinds) Names() []string {
	var names []string
	for _, k := range []Kind{Create, Update, Delete, VRead} {
		if s.Has(k) {
			names = append(names, k.String())
		}
	}
	return names
}

// KindOf returns the kind of a change. The log has a PUT that creates as a POST.
func KindOf(m fhir.Method) Kind {
	switch m {
	case fhir.POST:
		return Create
	case fhir.DELETE:
		return Delete
	case fhir.VREAD:
		return VRead
	}
	return Update
}

// An Event is a create, update, delete or read of one resource.
type Event struct {
	Position store.ChangePosition
	Kind     Kind
	// Version is the version that the event made, or that was read. A deletion's has
	// no Body; channel.header of a Subscription's is masked.
	Version fhir.Version
	// Previous is the version before, the zero value where there was none.
	Previous fhir.Version
	Written  time.Time // when its transaction began
	Trace    string    // that the write was part of, as traceparent; "" for none

	Ref              int64
	current, earlier held
}

// held is the decoded form of a version, made when it is first needed.
type held struct {
	read     bool
	resource fhir.Resource
	index    *fhir.Index // nil where there is no version, or it cannot be read
}

// ResourceType returns the type of the resource.
func (e *Event) ResourceType() string { return e.Version.ResourceType }

// Namespace is the namespace of the ids of notifications.
var Namespace = uuid.MustParse("6b1d0c0e-5f0b-5d0c-9a53-0a2f6e1c7b44")

// NotificationID returns the id of the notification of a version of a resource to a subscriber. It is the same for
// each attempt. subscriber is "" for streams.
func NotificationID(subscriber, typ, id string, versionID int, k Kind) uuid.UUID {
	return uuid.NewSHA1(Namespace, fmt.Appendf(nil, "%s\n%s/%s/%d\n%c", subscriber, typ, id, versionID, k))
}

// NotificationIDIn returns the NotificationID of a version that was written in an epoch. Later epochs may use a
// version number again; the id is then another.
func NotificationIDIn(epoch store.EpochID, subscriber, typ, id string, versionID int, k Kind) uuid.UUID {
	u := NotificationID(subscriber, typ, id, versionID, k)
	if epoch > store.FirstEpoch {
		u = uuid.NewSHA1(u, fmt.Appendf(nil, "%x", int64(epoch)))
	}
	return u
}

// NotificationID returns the id of the notification of the event to a subscriber.
func (e *Event) NotificationID(subscriber string) uuid.UUID {
	id := NotificationIDIn(e.Position.Epoch, subscriber, e.Version.ResourceType, e.Version.ID, e.Version.VersionID, e.Kind)
	if e.Kind == VRead { // the same version may be read again
		return uuid.NewSHA1(id, []byte(Cursor(e.Position)))
	}
	return id
}

// Cursor returns a position in the form that clients get: opaque, and valid in a URL and a header.
func Cursor(p store.ChangePosition) string {
	var b [cursorBytes]byte
	binary.BigEndian.PutUint64(b[:], uint64(p.Epoch))
	binary.BigEndian.PutUint64(b[8:], uint64(p.XID))
	binary.BigEndian.PutUint64(b[16:], uint64(p.RID))
	binary.BigEndian.PutUint32(b[24:], uint32(p.Version))
	return base64.RawURLEncoding.EncodeToString(b[:])
}

const (
	cursorBytes = 28
	// cursorLength is the length of the text of a cursor in bytes.
	CursorLength = 38
	// oldCursorBytes is the length of a cursor of a build without epochs.
	oldCursorBytes = 20
)

// ParseCursor reads a Cursor. It fails with invalid, 400.
func ParseCursor(text string) (store.ChangePosition, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if len(b) == oldCursorBytes {
		b = binary.BigEndian.AppendUint64(make([]byte, 0, cursorBytes), uint64(store.FirstEpoch))
		old, _ := base64.RawURLEncoding.DecodeString(text) // as above
		b = append(b, old...)
	}
	if err != nil || len(b) != cursorBytes || binary.BigEndian.Uint64(b) < uint64(store.FirstEpoch) || b[0] > 127 {
		return store.ChangePosition{}, outcome.Invalid("%q is neither a cursor that this server has given out nor an instant", outcome.Clip(text))
	}
	return store.ChangePosition{
		Epoch: store.EpochID(binary.BigEndian.Uint64(b)), XID: int64(binary.BigEndian.Uint64(b[8:])), RID: int64(binary.BigEndian.Uint64(b[16:])), Version: int(int32(binary.BigEndian.Uint32(b[24:]))),
	}, nil
}

// ReadEvents reads the versions of changes, without those that have been deleted meanwhile. previous asks for the
// versions before, too; deletions always have them.
func (s *Evaluator) ReadEvents(ctx context.Context, changes []store.Change, previous bool) ([]*Event, error) {
	keys := make([]store.VersionKey, 0, len(changes)+8)
	types := make(map[int64]string, len(changes))
	for _, c := range changes {
		types[c.Ref] = c.ResourceType
		keys = append(keys, c.Key())
		if (previous && c.Method != fhir.VREAD) || c.Method == fhir.DELETE {
			keys = append(keys, c.Previous())
		}
	}
	versions, err := s.ReadVersions(ctx, keys, types)
	if err != nil {
		return nil, err
	}
	list := make([]*Event, 0, len(changes))
	for _, c := range changes {
		v, ok := versions[c.Key()]
		if !ok {
			continue
		}
		e := &Event{Position: c.Position, Kind: KindOf(c.Method), Version: v, Written: c.Written, Trace: c.Trace, Ref: c.Ref}
		if e.Kind != VRead {
			e.Previous = versions[c.Previous()]
			if e.Previous.Deleted() {
				e.Previous = fhir.Version{}
			}
		}
		list = append(list, e)
	}
	return list, nil
}

// IndexedVersion returns the version of an event or, with earlier, the version before, and its index entries.
func (s *Evaluator) IndexedVersion(e *Event, earlier bool) (fhir.Version, *fhir.Index) {
	if earlier {
		return e.Previous, s.indexOf(e.Previous, &e.earlier)
	}
	return e.Version, s.indexOf(e.Version, &e.current)
}

// indexOf returns the index entries of a version, nil if there are none. It decodes the version once.
func (s *Evaluator) indexOf(v fhir.Version, h *held) *fhir.Index {
	if !h.read {
		h.read = true
		if len(v.Body) > 0 {
			if r, err := s.Store.Indexer().Decode(v.Body); err == nil {
				h.resource = r
				// If a parameter cannot be evaluated, the entries of the others remain.
				h.index, _ = s.Store.Indexer().Index(v.ID, r)
			}
		}
	}
	return h.index
}
