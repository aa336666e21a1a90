package telemetry

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

const (
	collectorTimeout = 10 * time.Second // for one attempt
	collectorTries   = 3
	collectorPause   = time.Second // before the second attempt; doubles
	maxAnswerBytes   = 64 << 10    // of a collector's answer, which is not used
)

// collector sends spans to an OTLP collector by HTTP POST, as protobuf. OpenTelemetry's own
// HTTP client does the same, but imports 66 packages of gRPC.
// Spec: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
type collector struct {
	url    string
	client *http.Client
}

// Start does nothing: connections are opened by the first request.
func (c *collector) Start(context.Context) error { return nil }

// Stop closes idle connections.
func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

// UploadTraces sends spans. It repeats the request where the specification of OTLP allows it.
func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// TracesData has the same bytes as ExportTraceServiceRequest, whose package imports gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	pause := collectorPause
	for try := 1; ; try++ {
		again, err := c.post(ctx, body)
		if err == nil || !again || try == collectorTries {
			return err
		}
		select {
		case <-time.After(pause):
			pause *= 2
		case <-ctx.Done():
			return err
		}
	}
}

// post sends one request. It reports whether another attempt can succeed.
func (c *collector) post(ctx context.Context, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, collectorTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	answer, err := c.client.Do(r)
	if err != nil {
		return true, err
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswerBytes)) // so that the connection can be used again
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true, fmt.Errorf("the collector answered %s", answer.Status)
	}
	if answer.StatusCode/100 != 2 {
		return false, fmt.Errorf("the collector answered %s", answer.Status)
	}
	return false, nil
}
