package upstream

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/sasl"
)

// marked makes what a broker says of a login ErrLogin.
func marked(err error) error {
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed), errors.Is(err, kerr.UnsupportedSaslMechanism):
		return fmt.Errorf("%w: %w", ErrLogin, err)
	case errors.Is(err, kerr.IllegalSaslState):
		return fmt.Errorf("%w: %w (a listener without SASL says so)", ErrLogin, err)
	}
	return err
}

// markedLogin makes what goes wrong on this side of a login ErrLogin.
type markedLogin struct{ sasl.Mechanism }

func (m markedLogin) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	session, first, err := m.Mechanism.Authenticate(ctx, host)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrLogin, err)
	}
	return markedSession{session}, first, nil
}

type markedSession struct{ sasl.Session }

func (s markedSession) Challenge(answer []byte) (done bool, next []byte, err error) {
	if done, next, err = s.Session.Challenge(answer); err != nil {
		err = fmt.Errorf("%w: %w", ErrLogin, err)
	}
	return done, next, err
}
