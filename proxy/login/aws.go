package login

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/smithy-go/logging"
	"github.com/twmb/franz-go/pkg/sasl"
	saslaws "github.com/twmb/franz-go/pkg/sasl/aws"
)

// awsTime bounds looking for AWS credentials, for which other servers may have to be asked.
const awsTime = 10 * time.Second

// AWS logs in with AWS_MSK_IAM and what the default chain of the AWS SDK finds: environment, shared files, web identity,
// container or instance roles. The region is the one in the broker's host name, else that of AWS_REGION.
func AWS() sasl.Mechanism {
	c := &awsCredentials{find: func(ctx context.Context) (aws.CredentialsProvider, error) {
		found, err := config.LoadDefaultConfig(ctx, config.WithLogger(logging.Nop{}))
		return found.Credentials, err
	}}
	return awsMechanism{saslaws.ManagedStreamingIAM(c.auth)}
}

// awsCredentials keeps what expires until then; what does not expire is looked for at each login, for it may be renewed
// where it is written down.
type awsCredentials struct {
	find func(context.Context) (aws.CredentialsProvider, error)

	mu   sync.Mutex
	kept aws.CredentialsProvider
}

func (c *awsCredentials) auth(ctx context.Context) (saslaws.Auth, error) {
	ctx, cancel := context.WithTimeout(ctx, awsTime)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil {
		found, err := c.find(ctx)
		if err != nil {
			return saslaws.Auth{}, noCredentials(err)
		}
		c.kept = found
	}
	v, err := c.kept.Retrieve(ctx)
	if err != nil || !v.CanExpire {
		c.kept = nil
	}
	if err != nil {
		return saslaws.Auth{}, noCredentials(err)
	}
	return saslaws.Auth{AccessKey: v.AccessKeyID, SecretKey: v.SecretAccessKey, SessionToken: v.SessionToken, UserAgent: "kshare"}, nil
}

// awsMechanism says what to do about a region that is not known.
type awsMechanism struct{ sasl.Mechanism }

func (m awsMechanism) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	session, first, err := m.Mechanism.Authenticate(ctx, host)
	if err != nil && !errors.Is(err, ErrNoCredentials) {
		err = fmt.Errorf("%w; set AWS_REGION", err)
	}
	return session, first, err
}
