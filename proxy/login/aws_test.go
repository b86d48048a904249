package login

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/twmb/franz-go/pkg/sasl"
)

// emptyBody is the SHA-256 of nothing.
const emptyBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// presign signs a request by its URL with AWS' own signer.
func presign(t *testing.T, c aws.Credentials, address, payload, service, region string, at time.Time) url.Values {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, _, err := v4.NewSigner().PresignHTTP(context.Background(), c, req, payload, service, region, at)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(signed)
	if err != nil {
		t.Fatal(err)
	}
	return u.Query()
}

// TestTheReferenceSignerKnowsThePublishedVector: the example of "Authenticating Requests: Using Query Parameters (AWS
// Signature Version 4)" in the reference of Amazon S3.
func TestTheReferenceSignerKnowsThePublishedVector(t *testing.T) {
	got := presign(t, aws.Credentials{AccessKeyID: "AKIAIOSFODNN7EXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"},
		"https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Expires=86400", "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC))
	if want := "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"; got.Get("X-Amz-Signature") != want {
		t.Errorf("signature %s, want %s", got.Get("X-Amz-Signature"), want)
	}
}

// TestAnAWSLoginIsSignedAsAWSSignsIt compares the first message with AWS' own signature of the same request at the same
// time: what Amazon's Java client sends is the query of that request, with all names in lower case, host, version and user agent.
func TestAnAWSLoginIsSignedAsAWSSignsIt(t *testing.T) {
	for _, c := range []struct {
		name, host, region string
		env                map[string]string
		session            string
	}{
		{"region of the host", "b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com", "eu-west-1", nil, ""},
		{"serverless", "boot-x1.c3.kafka-serverless.us-gov-west-1.amazonaws.com", "us-gov-west-1", nil, ""},
		{"temporary credentials", "b-2.demo.abc123.c2.kafka.us-east-1.amazonaws.com", "us-east-1", nil, "FwoGZXIvYXdzE+/=="},
		{"region of the environment", "kafka.example.org", "ap-south-1", map[string]string{"AWS_REGION": "ap-south-1"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			credentials := aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", SessionToken: c.session}
			environment(t, c.env)
			t.Setenv("AWS_ACCESS_KEY_ID", credentials.AccessKeyID)
			t.Setenv("AWS_SECRET_ACCESS_KEY", credentials.SecretAccessKey)
			t.Setenv("AWS_SESSION_TOKEN", credentials.SessionToken)
			var got map[string]string
			var at time.Time
			synctest.Test(t, func(t *testing.T) { // so that the time of the signature is known
				at = time.Now().UTC()
				got = firstFields(t, AWS(), c.host+":9098")
			})
			want := map[string]string{"host": c.host, "version": "2020_10_22", "user-agent": "kshare"}
			query := presign(t, credentials, "https://"+c.host+"/?Action=kafka-cluster%3AConnect&X-Amz-Expires=900", emptyBody, "kafka-cluster", c.region, at)
			for name, values := range query {
				want[strings.ToLower(name)] = values[0]
			}
			if !maps.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
			if names := slices.Sorted(maps.Keys(got)); !slices.Contains(names, "x-amz-signature") {
				t.Errorf("no signature in %v", names)
			}
		})
	}
}

// environment leaves of AWS' variables only the given ones, and no way to credentials.
func environment(t *testing.T, env map[string]string) {
	t.Helper()
	for _, line := range os.Environ() {
		if name, _, _ := strings.Cut(line, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	for _, name := range []string{"AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"} {
		t.Setenv(name, filepath.Join(t.TempDir(), "none"))
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
}

func firstFields(t *testing.T, m sasl.Mechanism, host string) map[string]string {
	t.Helper()
	_, first, err := m.Authenticate(context.Background(), host)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]string
	if err := json.Unmarshal(first, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

func TestAWSCredentialsOfAFileAreReadAtEachLogin(t *testing.T) {
	name := filepath.Join(t.TempDir(), "credentials")
	environment(t, map[string]string{"AWS_SHARED_CREDENTIALS_FILE": name, "AWS_REGION": "eu-west-1"})
	m := AWS()
	if _, _, err := m.Authenticate(context.Background(), "b:1"); !errors.Is(err, ErrNoCredentials) {
		t.Errorf("without credentials: %v", err)
	}
	for _, id := range []string{"AKIDONE", "AKIDTWO"} {
		write(t, name, "[default]\naws_access_key_id = "+id+"\naws_secret_access_key = s3cr3t\n")
		if got := firstFields(t, m, "b:1")["x-amz-credential"]; !strings.HasPrefix(got, id+"/") {
			t.Errorf("signed with %s, want %s", got, id)
		}
	}
}

func TestAWSCredentialsThatExpireAreKeptUntilThen(t *testing.T) {
	environment(t, map[string]string{"AWS_REGION": "eu-west-1"})
	synctest.Test(t, func(t *testing.T) {
		found, asked := 0, 0
		c := &awsCredentials{find: func(context.Context) (aws.CredentialsProvider, error) {
			found++
			return aws.NewCredentialsCache(aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				asked++
				return aws.Credentials{AccessKeyID: "id", SecretAccessKey: "key", CanExpire: true, Expires: time.Now().Add(time.Hour)}, nil
			})), nil
		}}
		login := func(wantAsked int) {
			t.Helper()
			if got, err := c.auth(context.Background()); err != nil || got.AccessKey != "id" || asked != wantAsked || found != 1 {
				t.Errorf("%v, %v: looked %d times and asked %d times, want 1 and %d", got.AccessKey, err, found, asked, wantAsked)
			}
		}
		login(1)
		login(1)
		time.Sleep(time.Hour) // of the bubble
		login(2)
	})
}

func TestAnUnknownAWSRegionIsSaid(t *testing.T) {
	environment(t, map[string]string{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "s3cr3t"})
	_, _, err := AWS().Authenticate(context.Background(), "kafka.example.org:9098")
	if err == nil || !strings.Contains(err.Error(), "kafka.example.org") || !strings.Contains(err.Error(), "set AWS_REGION") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v", err)
	}
}
