package login

import (
	"context"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Plain logs in with PLAIN, which shows the password to the broker, and without TLS to everyone on the way.
func Plain(user string, password Secret) sasl.Mechanism {
	return plain.Plain(func(context.Context) (plain.Auth, error) {
		pass, err := password()
		if err != nil {
			return plain.Auth{}, noCredentials(err)
		}
		return plain.Auth{User: user, Pass: pass}, nil
	})
}

// ScramSHA256 logs in with SCRAM-SHA-256.
func ScramSHA256(user string, password Secret) sasl.Mechanism {
	return scram.Sha256(scramAuth(user, password))
}

// ScramSHA512 logs in with SCRAM-SHA-512.
func ScramSHA512(user string, password Secret) sasl.Mechanism {
	return scram.Sha512(scramAuth(user, password))
}

func scramAuth(user string, password Secret) func(context.Context) (scram.Auth, error) {
	return func(context.Context) (scram.Auth, error) {
		pass, err := password()
		if err != nil {
			return scram.Auth{}, noCredentials(err)
		}
		return scram.Auth{User: user, Pass: pass}, nil
	}
}
