package proxy

import "errors"

// CloseReason says why a client connection ended. It is the label `reason` of
// kshare_proxy_connections_closed_total and a field of the log line.
type CloseReason string

// The reasons. Each connection ends with exactly one.
const (
	CloseClient           CloseReason = "client_closed"
	CloseTruncated        CloseReason = "truncated_frame"
	CloseUpstream         CloseReason = "upstream_closed"
	CloseUpstreamDial     CloseReason = "upstream_unreachable"
	CloseUpstreamProtocol CloseReason = "upstream_protocol_error"
	CloseTLS              CloseReason = "tls_on_plain_port"
	ClosePlain            CloseReason = "plain_on_tls_port"
	CloseHandshake        CloseReason = "tls_handshake_failed"
	CloseTLSBroken        CloseReason = "tls_broken"
	CloseCertificate      CloseReason = "client_certificate_refused"
	CloseUnknownNode      CloseReason = "unknown_node_name"
	CloseHTTP             CloseReason = "http_on_kafka_port"
	CloseNegativeFrame    CloseReason = "negative_frame_size"
	CloseOversizedFrame   CloseReason = "oversized_frame"
	CloseMalformed        CloseReason = "malformed_request"
	CloseUnsupportedAPI   CloseReason = "unsupported_api"
	CloseUnsupported      CloseReason = "unsupported_version"
	CloseServe            CloseReason = "serve_failed"
	CloseSilent           CloseReason = "no_first_request"
	CloseNotAuthenticated CloseReason = "not_authenticated"
	CloseSlowRequest      CloseReason = "slow_request"
	CloseSlowReader       CloseReason = "slow_reader"

	CloseTooManyFromAddress CloseReason = "too_many_from_address"

	CloseDrain         CloseReason = "drain"
	CloseDrainDeadline CloseReason = "drain_deadline"
	CloseTombstone     CloseReason = "tombstone"
	CloseShutdown      CloseReason = "shutdown"
)

// quiet reasons belong to ordinary life and are logged at debug level.
var quiet = map[CloseReason]bool{CloseClient: true, CloseUpstream: true, CloseSilent: true, CloseDrain: true, CloseDrainDeadline: true}

// closeError ends a connection: the reason for people and metrics, the cause
// for the log.
type closeError struct {
	reason CloseReason
	cause  error
}

func (e *closeError) Error() string {
	if e.cause == nil {
		return string(e.reason)
	}
	return string(e.reason) + ": " + e.cause.Error()
}

func (e *closeError) Unwrap() error { return e.cause }

func closing(reason CloseReason, cause error) error { return &closeError{reason, cause} }

// reasonOf tells how err ends a connection.
func reasonOf(err error, otherwise CloseReason) CloseReason {
	var c *closeError
	if errors.As(err, &c) {
		return c.reason
	}
	return otherwise
}
