package server

import "kiln/server/telemetry"

// TelemetryConfig is about traces and timings.
type TelemetryConfig struct {
	OTLPEndpoint string  `koanf:"otlp_endpoint" secret:"url" doc:"OTLP/HTTP collector that traces are sent to, such as http://127.0.0.1:4318; empty makes none"`
	SampleRatio  float64 `koanf:"sample_ratio" doc:"part of the requests that are traced where the caller does not say, 0 to 1"`
	ServerTiming bool    `koanf:"server_timing" doc:"answers say where their time went, in the header Server-Timing"`
}

func (c TelemetryConfig) check(p *problems) {
	p.webURL("telemetry.otlp_endpoint", c.OTLPEndpoint)
	if c.SampleRatio < 0 || c.SampleRatio > 1 {
		p.add("telemetry.sample_ratio is %v: expected 0 to 1", c.SampleRatio)
	}
}

// tracing is where the traces go.
func (c TelemetryConfig) tracing(version string) telemetry.Config {
	return telemetry.Config{Endpoint: c.OTLPEndpoint, Ratio: c.SampleRatio, Version: version}
}
