package changefeed_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/changefeed"
)

// A token of MongoDB 7.0, and one of the stand-in's.
const (
	realToken = "8263B5B0F1000000022B042C0100296E5A1004F1C4A9B6E5D94F0C9F0E0A5C6B1D2E3F46645F6964006463B5B0F1A2B3C4D5E6F708090004"
	highToken = "8263B5B0F1000000020000000000000004"
)

func TestToken(t *testing.T) {
	token, err := changefeed.ParseToken(strings.ToLower(realToken))
	if err != nil || token != realToken {
		t.Fatalf("%q, %v", token, err)
	}
	if ts := token.Timestamp(); ts != (bson.Timestamp{T: 0x63B5B0F1, I: 2}) || !token.Time().Equal(time.Unix(0x63B5B0F1, 0)) {
		t.Errorf("%v, %v", ts, token.Time())
	}
	if token.Compare(highToken) != 1 || token.Compare(realToken) != 0 || changefeed.Token("").Compare(token) != -1 {
		t.Error("order")
	}
	if !changefeed.Token("").Time().IsZero() {
		t.Error("the empty token has a time")
	}
	for _, s := range []string{"", "82", "83" + realToken[2:], realToken + "0", "x" + realToken, strings.Repeat(realToken, 1000)} {
		_, err := changefeed.ParseToken(s)
		wantErr(t, err, jetbus.ErrInvalidOption)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(realToken)
	f.Add("82zz")
	f.Fuzz(func(t *testing.T, s string) {
		token, err := changefeed.ParseToken(s)
		if err != nil {
			if token != "" {
				t.Errorf("%q: %q with %v", s, token, err)
			}
			return
		}
		if again, err := changefeed.ParseToken(string(token)); err != nil || again != token || !strings.EqualFold(s, string(token)) {
			t.Errorf("%q: %q, %v", s, again, err)
		}
		if token.Timestamp().T != 0 && token.Time().IsZero() {
			t.Errorf("%q has no time", token)
		}
	})
}

// Different ids have different keys, all of which are valid.
func FuzzKey(f *testing.F) {
	for _, s := range []string{"", "a", `"a"`, "true", "507f1f77bcf86cd799439011", `{"$numberInt":"1"}`, "sha256:", "\n", `"\n"`, strings.Repeat("x", 300)} {
		f.Add(s, "b")
	}
	raw := func(t *testing.T, v any) bson.RawValue {
		kind, data, err := bson.MarshalValue(v)
		if err != nil {
			t.Fatal(err)
		}
		return bson.RawValue{Type: kind, Value: data}
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = strings.ToValidUTF8(a, ""), strings.ToValidUTF8(b, "")
		ka, kb := changefeed.Key(raw(t, a)), changefeed.Key(raw(t, b))
		if (a == b) != (ka == kb) || ka == "" || jetbus.ValidKey(ka) != nil {
			t.Errorf("%q and %q: %q and %q", a, b, ka, kb)
		}
		for _, other := range []any{int32(1), true, bson.Null{}, bson.ObjectID{}, bson.D{{Key: "a", Value: b}}} {
			if k := changefeed.Key(raw(t, other)); k == ka {
				t.Errorf("%q and %v have the key %q", a, other, k)
			}
		}
	})
}
