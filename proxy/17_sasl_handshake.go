package proxy

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kbin"
)

// SaslHandshake: relayed untouched
//
//   - v1: tokens travel in SaslAuthenticate requests, relayed as any other
//   - v0: tokens follow as bare frames without header or correlation id, until
//     the mechanism is through. How many there are is known for PLAIN, SCRAM
//     and OAUTHBEARER; GSSAPI clients must use v1, as all since 1.0 do

// maxToken is Kafka's sasl.server.max.receive.size.
const maxToken = 512 << 10

func (c *conn) saslHandshake(r request) error {
	tokens := 0
	if r.version == 0 {
		body := kbin.Reader{Src: r.body}
		mechanism := body.String()
		switch {
		case mechanism == "PLAIN", mechanism == "OAUTHBEARER":
			tokens = 1
		case strings.HasPrefix(mechanism, "SCRAM-"):
			tokens = 2
		default:
			return closing(CloseUnsupported, fmt.Errorf("SaslHandshake v0 with mechanism %q; use a client that speaks v1", mechanism))
		}
	}
	if err := c.relayHeld(r, nil); err != nil {
		return err
	}
	c.rawTokens = tokens
	c.auth.forget()
	return nil
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
