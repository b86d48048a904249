package proxy

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// SaslHandshake: relayed
//
//   - v1: tokens travel in SaslAuthenticate requests, relayed as any other
//   - v0: tokens follow as bare frames without header or correlation id, until
//     the mechanism is through. How many there are is known for PLAIN, SCRAM
//     and OAUTHBEARER; GSSAPI clients must use v1, as all since 1.0 do

// maxToken is Kafka's sasl.server.max.receive.size.
const maxToken = 512 << 10

func (c *conn) saslHandshake(r request) error {
	c.auth.forget()
	if r.version > 0 {
		return c.relayHeld(r, nil)
	}
	body, err := r.decode()
	if err != nil {
		return err
	}
	tokens, ok := bareTokens(body.(*kmsg.SASLHandshakeRequest).Mechanism)
	if !ok {
		return closing(CloseUnsupported, fmt.Errorf("SaslHandshake v0 with mechanism %q; use a client that speaks v1", body.(*kmsg.SASLHandshakeRequest).Mechanism))
	}
	// Only if upstream agrees do tokens follow: else what a client sends as one
	// would be a request that nobody here has looked at.
	resp, err := c.askWatching(body)
	if err != nil {
		return err
	}
	if resp.(*kmsg.SASLHandshakeResponse).ErrorCode == 0 {
		c.rawTokens = tokens
	}
	return c.respond(r.corr, resp)
}

// bareTokens is how many a client sends after SaslHandshake v0.
func bareTokens(mechanism string) (n int, ok bool) {
	switch {
	case mechanism == "PLAIN", mechanism == "OAUTHBEARER":
		return 1, true
	case strings.HasPrefix(mechanism, "SCRAM-"):
		return 2, true
	}
	return 0, false
}

// readToken waits for a bare token and reports its size as a header's.
func (c *conn) readToken() (header, error) {
	b, err := c.in.Peek(sizeLen)
	if err != nil {
		return header{}, err
	}
	size := int32(binary.BigEndian.Uint32(b))
	if size < 0 || size > maxToken {
		return header{}, closing(CloseMalformed, fmt.Errorf("SASL token of %d bytes", size))
	}
	return header{size: size, key: saslAuthenticateKey}, nil
}

func (c *conn) relayToken(h header) error {
	c.rawTokens--
	return c.relayAs(slot{key: h.key, client: true, token: true}, h, false)
}
