// Package subscription reads Subscriptions and SubscriptionTopics: the rules, the channel and the form of the
// messages. A Reader reads them from the store; what the server masks is masked here.
package subscription

import (
	"context"
	"mime"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/notify/matching"
	"kiln/server/outcome"
)

// Content is how much of a resource a notification has.
type Content uint8

const (
	FullResource Content = iota
	IDOnly
	Empty
)

// A Subscription is a Subscription as it is carried out.
type Subscription struct {
	ID        string
	Status    string
	WebSocket bool // R4's websocket channel; otherwise rest-hook
	Endpoint  *url.URL
	Headers   http.Header
	Payload   string // media type; "" sends no resource
	Topic     string // canonical; "" with criteria
	End       time.Time
	Rules     []matching.Rule
	Principal *access.Principal // whose rights the rules keep to; nil or open sees everything

	// backport is the form of the Subscriptions R5 Backport IG, with its additional fields.
	Backport  bool
	Content   Content
	Heartbeat time.Duration // 0 is the server's
	Timeout   time.Duration // 0 is the server's
	Include   []string      // of the topic's notification shape
}

// Reference is "Subscription/<id>".
func (c *Subscription) Reference() string { return "Subscription/" + c.ID }

// Extensions of the Subscriptions R5 Backport IG 1.1.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/.
const (
	BackportBase       = "http://hl7.org/fhir/uv/subscriptions-backport/StructureDefinition/"
	backportFilter     = BackportBase + "backport-filter-criteria"
	backportContent    = BackportBase + "backport-payload-content"
	HeartbeatExtension = BackportBase + "backport-heartbeat-period"
	backportTimeout    = BackportBase + "backport-timeout"
	backportProfile    = BackportBase + "backport-subscription"
)

// maxHeaders and maxHeader bound channel.header.
const (
	maxHeaders = 32
	maxHeader  = 8 << 10 // bytes
)

// Compile reads a Subscription. Criteria that a search would refuse fail with the search's
// issue code and text, 422.
func (s *Reader) Compile(ctx context.Context, id string, r *r4.Subscription) (*Subscription, error) {
	c := &Subscription{ID: id, Status: r.Status.Text, Principal: access.PrincipalFrom(ctx)}
	if r.Channel == nil {
		return nil, Unprocessable("Subscription.channel", outcome.CodeRequired, "a subscription needs a channel")
	}
	if err := s.compileChannel(c, r.Channel); err != nil {
		return nil, err
	}
	if r.End.Text != "" {
		at, err := time.Parse(time.RFC3339Nano, r.End.Text)
		if err != nil {
			return nil, Unprocessable("Subscription.end", outcome.CodeValue, "%q is no instant", outcome.Clip(r.End.Text))
		}
		c.End = at
	}
	text := r.Criteria.Text
	var err error
	switch {
	case r.Topic.Text != "":
		if text != "" && text != r.Topic.Text {
			return nil, Unprocessable("Subscription.criteria", outcome.CodeInvalid, "a subscription has criteria or a topic, not both")
		}
		c.Topic = r.Topic.Text
		err = s.compileTopic(ctx, c, filtersOf(r.FilterBy), "Subscription.filterBy")
	case IsCanonical(text):
		c.Backport, c.Topic = true, text
		err = s.compileTopic(ctx, c, s.backportFilters(r), "Subscription.criteria.extension")
	case text == "":
		return nil, Unprocessable("Subscription.criteria", outcome.CodeRequired, "a subscription needs criteria or a topic")
	default:
		typ, query := matching.SplitCriteria(text)
		var parsed *matching.Criteria
		if parsed, err = s.Evaluator.ParseCriteria(ctx, typ, query); err != nil {
			return nil, RefuseCriteria(err, "Subscription.criteria")
		}
		rule := matching.Rule{ResourceType: typ, Kinds: matching.AllKinds}
		if len(parsed.Query.Clauses) > 0 {
			rule.Current = parsed
		}
		c.Rules = []matching.Rule{rule}
		if len(r.FilterBy) > 0 {
			err = s.applyFilters(ctx, c, filtersOf(r.FilterBy), "Subscription.filterBy", nil)
		}
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// compileChannel reads where notifications go.
func (s *Reader) compileChannel(c *Subscription, ch *r4.SubscriptionChannel) error {
	switch ch.Type_.Text {
	case "websocket":
		c.WebSocket = true
	case "rest-hook":
		u, err := url.Parse(ch.Endpoint.Text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil {
			return Unprocessable("Subscription.channel.endpoint", outcome.CodeValue,
				"%q is no endpoint: expected an http or https URL without a user", outcome.Clip(ch.Endpoint.Text))
		}
		if err := s.CheckEndpoint(u); err != nil {
			return Unprocessable("Subscription.channel.endpoint", outcome.CodeInvalid, "%v", err)
		}
		c.Endpoint = u
	default:
		return Unprocessable("Subscription.channel.type", outcome.CodeNotSupported,
			"channel.type %q is not supported: expected rest-hook or websocket", outcome.Clip(ch.Type_.Text))
	}
	c.Payload = ch.Payload.Text
	if c.Payload != "" && !jsonMedia(c.Payload) {
		return Unprocessable("Subscription.channel.payload", outcome.CodeNotSupported,
			"channel.payload %q is not supported: expected application/fhir+json or application/json", outcome.Clip(c.Payload))
	}
	if err := c.readHeaders(ch); err != nil {
		return err
	}
	for _, x := range ch.Extension {
		switch x.URL.Text {
		case HeartbeatExtension:
			c.Heartbeat = ParseDuration(x.Value)
		case backportTimeout:
			c.Timeout = ParseDuration(x.Value)
		}
	}
	return c.readContent(ch)
}

// readHeaders reads the headers that messages have.
func (c *Subscription) readHeaders(ch *r4.SubscriptionChannel) error {
	if len(ch.Header) > maxHeaders {
		return Unprocessable("Subscription.channel.header", outcome.CodeTooLong, "%d headers: at most %d", len(ch.Header), maxHeaders)
	}
	c.Headers = make(http.Header, len(ch.Header))
	for i := range ch.Header {
		name, value, err := parseHeader(ch.Header[i].Text)
		if err != nil {
			return Unprocessable("Subscription.channel.header["+strconv.Itoa(i)+"]", outcome.CodeInvalid, "%v", err)
		}
		c.Headers.Add(name, value)
	}
	return nil
}

// readContent reads the extension about the resources in messages.
func (c *Subscription) readContent(ch *r4.SubscriptionChannel) error {
	if x := ch.Payload.Extra; x != nil {
		for _, e := range x.Extension {
			if e.URL.Text != backportContent {
				continue
			}
			switch code, _ := e.Value.(*fhir.Code); {
			case code != nil && code.Text == "full-resource":
				c.Content = FullResource
			case code != nil && code.Text == "id-only":
				c.Content = IDOnly
			case code != nil && code.Text == "empty":
				c.Content = Empty
			default:
				return Unprocessable("Subscription.channel.payload.extension", outcome.CodeValue, "payload-content is empty, id-only or full-resource")
			}
		}
	}
	return nil
}

// jsonMedia reports whether a media type is one that notifications have.
func jsonMedia(text string) bool {
	base, _, _ := strings.Cut(text, ";")
	switch strings.TrimSpace(strings.ToLower(base)) {
	case "application/fhir+json", "application/json":
		return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	}
	return false
}

// ParseDuration returns the seconds in the value of an extension.
func ParseDuration(e fhir.Element) time.Duration {
	var text string
	switch v := e.(type) {
	case *fhir.UnsignedInt:
		text = v.Text
	case *fhir.PositiveInt:
		text = v.Text
	case *fhir.Integer:
		text = v.Text
	}
	n, _ := strconv.Atoi(text)
	return time.Duration(min(max(n, 0), 24*3600)) * time.Second
}

// parseHeader reads "Name: value". It refuses what belongs to the connection, to the
// server, or is no header.
func parseHeader(text string) (name, value string, err error) {
	name, value, ok := strings.Cut(text, ":")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	switch {
	case !ok || !headerName(name) || !headerValue(value) || len(text) > maxHeader:
		return "", "", outcome.Invalid("a header is `Name: value` on one line")
	}
	name = textproto.CanonicalMIMEHeaderKey(name)
	if slices.Contains(reservedHeaders, name) || strings.HasPrefix(name, "Webhook-") || strings.HasPrefix(name, "Proxy-") {
		return "", "", outcome.Invalid("the header %s cannot be set: it belongs to the connection or to the server", name)
	}
	return name, value, nil
}

// headerName reports whether a name is a token. RFC 9110 §5.6.2.
func headerName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return name != ""
}

// headerValue reports whether a value has no control characters. RFC 9110 §5.5.
func headerValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// reservedHeaders are hop by hop (RFC 9110 §7.6.1), frame the message, or are the server's
// own.
var reservedHeaders = []string{
	"Host", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade",
	"Expect", "X-Notification-Id", "X-Subscription-Id", "X-Signature", "User-Agent", "Accept-Encoding",
}

// Unprocessable is a 422 about an element.
func Unprocessable(element string, code outcome.Code, format string, args ...any) error {
	return outcome.UnprocessableContent(code, format, args...).At(element)
}

// RefuseCriteria makes a 422 of a search's client error, with the same words. Other errors stay as
// they are.
func RefuseCriteria(err error, element string) error {
	o, ok := outcome.From(err)
	if !ok || outcome.Ours(err) {
		return err
	}
	issues := slices.Clone(o.Issues)
	for i := range issues {
		if issues[i].Expression == "" {
			issues[i].Expression = element
		}
	}
	return outcome.Unprocessable(issues)
}

// filterBy is a filter of a topic: a search parameter, with its modifier, and a value.
type filterBy struct {
	resourceType, parameter, value string
}

func filtersOf(list []r4.SubscriptionFilterBy) []filterBy {
	var out []filterBy
	for i := range list {
		out = append(out, filterBy{list[i].ResourceType.Text, list[i].FilterParameter.Text, list[i].Value.Text})
	}
	return out
}

// backportFilters are the filters of the IG's form: `Type?parameter=value&…`, or
// `parameter=value&…`, where a parameter may have its type before it: `Type.parameter=value`.
// A parameter may have a modifier.
func (s *Reader) backportFilters(r *r4.Subscription) []filterBy {
	if r.Criteria.Extra == nil {
		return nil
	}
	var out []filterBy
	for _, x := range r.Criteria.Extra.Extension {
		text, ok := x.Value.(*fhir.String)
		if x.URL.Text != backportFilter || !ok {
			continue
		}
		typ, query := matching.SplitCriteria(text.Text)
		if !strings.Contains(text.Text, "?") {
			typ, query = "", text.Text
		}
		values, err := interaction.ParseQuery(query)
		if err != nil || len(values) == 0 {
			out = append(out, filterBy{typ, "", text.Text}) // refused by name
			continue
		}
		for name, list := range values {
			of, parameter := typ, name
			if before, after, ok := strings.Cut(name, "."); ok && typ == "" && s.Interactions.Model.Resources[before] != nil {
				of, parameter = before, after
			}
			for _, v := range list {
				out = append(out, filterBy{of, parameter, v})
			}
		}
	}
	slices.SortFunc(out, func(a, b filterBy) int { return strings.Compare(a.parameter, b.parameter) })
	return out
}

// CheckForm refuses demands of a Subscription that the server cannot meet. It is about
// new versions only: a Subscription that an older release stored goes on.
// Spec: http://hl7.org/fhir/uv/subscriptions-backport/STU1.1/StructureDefinition-backport-subscription.html.
func CheckForm(r *r4.Subscription) error {
	if len(r.ModifierExtension) > 0 {
		return Unprocessable("Subscription.modifierExtension", outcome.CodeNotSupported, "the modifier extension %q is not known", outcome.Clip(r.ModifierExtension[0].URL.Text))
	}
	backport := IsBackport(r)
	if err := checkFilters(r, backport); err != nil {
		return err
	}
	ch := r.Channel
	if x := ch.Type_.Extra; x != nil {
		for _, e := range x.Extension {
			if e.URL.Text != BackportBase+"backport-channel-type" {
				continue
			}
			if code, ok := e.Value.(*r4.Coding); !ok || code.Code.Text != ch.Type_.Text {
				return Unprocessable("Subscription.channel.type.extension", outcome.CodeNotSupported, "the backport-channel-type is not supported: expected rest-hook or websocket, as channel.type")
			}
		}
	}
	if _, parameters, err := mime.ParseMediaType(ch.Payload.Text); ch.Payload.Text != "" {
		if version := parameters["fhirversion"]; err != nil || version != "" && version != "4.0" {
			return Unprocessable("Subscription.channel.payload", outcome.CodeNotSupported, "channel.payload %q is not supported: the fhirVersion is 4.0", outcome.Clip(ch.Payload.Text))
		}
	}
	if !backport {
		return nil
	}
	if ch.Payload.Text == "" {
		return Unprocessable("Subscription.channel.payload", outcome.CodeRequired, "a subscription to a topic needs channel.payload: application/fhir+json or application/json")
	}
	if x := ch.Payload.Extra; x == nil || !slices.ContainsFunc(x.Extension, func(e fhir.Extension) bool { return e.URL.Text == backportContent }) {
		return Unprocessable("Subscription.channel.payload.extension", outcome.CodeRequired, "a subscription to a topic needs the extension backport-payload-content: empty, id-only or full-resource")
	}
	return nil
}

// checkFilters refuses filters that are not in the form of the Backport IG.
func checkFilters(r *r4.Subscription, backport bool) error {
	if x := r.Criteria.Extra; x != nil {
		for _, e := range x.Extension {
			text, ok := e.Value.(*fhir.String)
			switch {
			case e.URL.Text != backportFilter:
				return Unprocessable("Subscription.criteria.extension", outcome.CodeNotSupported, "the extension %q on criteria is not known: expected %s", outcome.Clip(e.URL.Text), backportFilter)
			case !backport:
				return Unprocessable("Subscription.criteria.extension", outcome.CodeInvalid, "filters belong to criteria that name a topic")
			case !ok || text.Text == "":
				return Unprocessable("Subscription.criteria.extension", outcome.CodeValue, "a filter is a valueString: parameter=value")
			}
		}
	}
	return nil
}

// applyFilters narrows the rules of a subscription. offered are the parameters that the topic
// can be filtered by, nil for all.
func (s *Reader) applyFilters(ctx context.Context, c *Subscription, filters []filterBy, element string, offered func(typ, parameter, modifier string) bool) error {
	for _, f := range filters {
		typ := strings.TrimPrefix(f.resourceType, "http://hl7.org/fhir/StructureDefinition/")
		used := false
		for i := range c.Rules {
			r := &c.Rules[i]
			if typ != "" && typ != r.ResourceType {
				continue
			}
			base, modifier, _ := strings.Cut(f.parameter, ":")
			if offered != nil && !offered(r.ResourceType, base, modifier) {
				continue
			}
			values := url.Values{}
			if r.Filter != nil {
				values, _ = url.ParseQuery(r.Filter.Text)
			}
			values.Add(f.parameter, f.value)
			parsed, err := s.Evaluator.CompileCriteria(ctx, r.ResourceType, values)
			if err != nil {
				return RefuseCriteria(err, element)
			}
			r.Filter, used = parsed, true
		}
		if !used {
			return Unprocessable(element, outcome.CodeNotSupported, "the topic does not offer the filter %q%s", outcome.Clip(f.parameter), onType(typ))
		}
	}
	return nil
}

func onType(typ string) string {
	if typ == "" {
		return ""
	}
	return " on " + outcome.Clip(typ)
}

// HasSameChannel reports whether two Subscriptions want the same sent to the same place.
func HasSameChannel(a, b *r4.Subscription) bool {
	strip := func(r *r4.Subscription) string {
		c := r4.Subscription{Criteria: r.Criteria, Channel: r.Channel, Topic: r.Topic, FilterBy: r.FilterBy}
		return string(fhir.Encode(nil, &c))
	}
	return strip(a) == strip(b)
}

// IsBackport reports whether a Subscription has the form of the Backport IG.
func IsBackport(r *r4.Subscription) bool { return r.Topic.Text == "" && IsCanonical(r.Criteria.Text) }

// IsCanonical reports whether criteria name a topic, as the Backport IG has it, and
// are no search: a search may well hold a URL, behind its question mark.
func IsCanonical(criteria string) bool {
	path, _, _ := strings.Cut(criteria, "?")
	return strings.Contains(path, "://") || strings.HasPrefix(path, "urn:")
}

// FHIRJSON is the media type of FHIR's JSON.
const FHIRJSON = "application/fhir+json"

// MediaType is the media type of messages in the form of the Backport IG: channel.payload.
func (c *Subscription) MediaType() string {
	if c.Payload == "" {
		return FHIRJSON
	}
	return c.Payload
}
