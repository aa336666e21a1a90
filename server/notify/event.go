package notify

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Kind is the kind of an event, by the letter that the queue stores.
type Kind byte

// The kinds of events.
const (
	Create Kind = 'C'
	Update Kind = 'U'
	Delete Kind = 'D'
	VRead  Kind = 'V'
)

// Kinds is a set of kinds.
type Kinds uint8

// AllKinds is create, update, delete and vread.
const AllKinds Kinds = 1<<4 - 1

func (k Kind) bit() Kinds {
	return 1 << strings.IndexByte("CUDV", byte(k))
}

// KindsOf is the set of some kinds.
func KindsOf(list ...Kind) (s Kinds) {
	for _, k := range list {
		s |= k.bit()
	}
	return s
}

// Has reports whether k is among the kinds.
func (s Kinds) Has(k Kind) bool { return s&k.bit() != 0 }

// String is the kind as the specification names it.
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

// pastTense is the kind in the names of server-sent events.
func (k Kind) pastTense() string {
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

// ParseKinds reads names of kinds; none are all. It fails with invalid, 400.
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
			return 0, outcome.Invalid("%q is no event: expected create, update, delete or vread", clip(name))
		}
	}
	if s == 0 {
		s = AllKinds
	}
	return s, nil
}

// Names lists the kinds as the specification names them.
func (s Kinds) Names() []string {
	var names []string
	for _, k := range []Kind{Create, Update, Delete, VRead} {
		if s.Has(k) {
			names = append(names, k.String())
		}
	}
	return names
}

// KindOf is the kind of a change. A PUT that creates is in the log as a POST.
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

// Event is one thing that happened to one resource.
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

	ref              int64
	current, earlier held
}

// held is the data of a version, read when it is first needed.
type held struct {
	read     bool
	resource fhir.Resource
	index    *fhir.Index // nil where there is no version, or it cannot be read
}

// ResourceType is the type of the resource.
func (e *Event) ResourceType() string { return e.Version.ResourceType }

// namespace of the ids of notifications.
var namespace = uuid.MustParse("6b1d0c0e-5f0b-5d0c-9a53-0a2f6e1c7b44")

// NotificationID is the id of the notification of a version of a resource to a subscriber: the
// same however often it is delivered. subscriber is "" for streams.
func NotificationID(subscriber, typ, id string, versionID int, k Kind) uuid.UUID {
	return uuid.NewSHA1(namespace, fmt.Appendf(nil, "%s\n%s/%s/%d\n%c", subscriber, typ, id, versionID, k))
}

// NotificationIDIn is the NotificationID of a version that was written in an epoch. A version number
// that is given again in a later epoch has another id.
func NotificationIDIn(epoch store.EpochID, subscriber, typ, id string, versionID int, k Kind) uuid.UUID {
	u := NotificationID(subscriber, typ, id, versionID, k)
	if epoch > store.FirstEpoch {
		u = uuid.NewSHA1(u, fmt.Appendf(nil, "%x", int64(epoch)))
	}
	return u
}

func (e *Event) notificationID(subscriber string) uuid.UUID {
	id := NotificationIDIn(e.Position.Epoch, subscriber, e.Version.ResourceType, e.Version.ID, e.Version.VersionID, e.Kind)
	if e.Kind == VRead { // the same version may be read again
		return uuid.NewSHA1(id, []byte(Cursor(e.Position)))
	}
	return id
}

// Cursor is a position as clients get it: opaque, and good for a URL and a header.
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
	cursorLength = 38
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
		return store.ChangePosition{}, outcome.Invalid("%q is neither a cursor that this server has given out nor an instant", clip(text))
	}
	return store.ChangePosition{
		Epoch: store.EpochID(binary.BigEndian.Uint64(b)), XID: int64(binary.BigEndian.Uint64(b[8:])), RID: int64(binary.BigEndian.Uint64(b[16:])), Version: int(int32(binary.BigEndian.Uint32(b[24:]))),
	}, nil
}

// since selects the events that a client has not received: after a position, made at or
// after an instant, and of transactions that had not ended at a snapshot.
type since struct {
	position store.ChangePosition
	instant  time.Time
	snapshot store.ChangeSnapshot
}

// includesPosition reports whether a change at a position belongs to it.
func (s since) includesPosition(p store.ChangePosition) bool {
	return p.Compare(s.position) > 0 && !s.snapshot.IsOver(p)
}

// parseSince reads a cursor or an instant; "" is now. A position before the start of the log is
// 410.
func (s *Service) parseSince(ctx context.Context, text string) (since, error) {
	if text == "" {
		at, err := s.Store.ChangeSnapshot(ctx)
		return since{position: at.Last(), snapshot: at}, err
	}
	at, err := parseInstant(text)
	if err != nil {
		p, err := ParseCursor(text)
		var ahead bool
		if err == nil {
			ahead, err = s.Store.FindCursor(ctx, p)
		}
		if ahead { // it would wait for events that have long been
			err = outcome.Invalid("%q is a cursor of events that have not been: this server has not given it out", clip(text))
		}
		return since{position: p}, gone(err)
	}
	p, err := s.Store.ChangesSince(ctx, at)
	return since{position: p, instant: at}, gone(err)
}

// gone makes a 410 of the error for a trimmed position.
func gone(err error) error {
	var trimmed *store.TrimmedError
	if errors.As(err, &trimmed) && trimmed.Lost {
		return outcome.New(outcome.CodeDeleted, "the cursor names an event that is not part of the database's history: the database was restored or has failed over without it; "+
			"ask for events with _since=%s", trimmed.Next().Format(time.RFC3339Nano))
	}
	if errors.As(err, &trimmed) {
		return outcome.New(outcome.CodeDeleted, "events are kept for a limited time, and events before %s are deleted; ask for later ones",
			trimmed.Next().Format(time.RFC3339Nano))
	}
	return err
}

// parseInstant reads a dateTime of FHIR; a date is its first instant in UTC.
func parseInstant(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	// A + in a query string is a blank.
	return time.Parse(time.RFC3339Nano, strings.Replace(text, " ", "+", 1))
}

// readEvents reads the versions of changes and leaves out those that have been deleted
// meanwhile. previous asks for the versions before as well; of deletions they always come.
// bodies names the types whose bodies are needed, nil stands for all.
func (s *Service) readEvents(ctx context.Context, changes []store.Change, previous bool) ([]*Event, error) {
	keys := make([]store.VersionKey, 0, len(changes)+8)
	types := make(map[int64]string, len(changes))
	for _, c := range changes {
		types[c.Ref] = c.ResourceType
		keys = append(keys, c.Key())
		if (previous && c.Method != fhir.VREAD) || c.Method == fhir.DELETE {
			keys = append(keys, c.Previous())
		}
	}
	versions, err := s.readVersions(ctx, keys, types)
	if err != nil {
		return nil, err
	}
	list := make([]*Event, 0, len(changes))
	for _, c := range changes {
		v, ok := versions[c.Key()]
		if !ok {
			continue
		}
		e := &Event{Position: c.Position, Kind: KindOf(c.Method), Version: v, Written: c.Written, Trace: c.Trace, ref: c.Ref}
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

// indexedVersion is the version of an event, or with earlier the version before, and its index
// entries.
func (s *Service) indexedVersion(e *Event, earlier bool) (fhir.Version, *fhir.Index) {
	if earlier {
		return e.Previous, s.indexOf(e.Previous, &e.earlier)
	}
	return e.Version, s.indexOf(e.Version, &e.current)
}

// indexOf returns the index entries of a version, nil if there are none.
func (s *Service) indexOf(v fhir.Version, h *held) *fhir.Index {
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

// clip bounds the part of the input that an error repeats.
func clip(text string) string { return outcome.Clip(text) }
