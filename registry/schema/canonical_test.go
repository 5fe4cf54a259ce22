package schema

import (
	"encoding/json"
	"errors"
	"testing"
)

func TestCanonical(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{` { "b" : [ 1 , true , null ] , "a" : "x" } `, `{"a":"x","b":[1,true,null]}`},
		// The order is that of UTF-16: a surrogate pair stands before the last of the basic plane.
		{`{"\ufb33":1,"\ud83d\ude00":2,"\u20ac":3,"\r":4,"1":5}`, "{\"\\r\":4,\"1\":5,\"\u20ac\":3,\"\U0001f600\":2,\"\ufb33\":1}"},
		{`"\u003c\/\u0008\u001f\""`, `"</\b\u001f\""`},
		{`{"const":-0.0}`, `{"const":0}`},
	} {
		got, err := Canonical(test.text)
		if err != nil || got != test.want {
			t.Errorf("Canonical(%s) = %s, %v, want %s", test.text, got, err, test.want)
		}
	}
	if _, err := Canonical(`{`); !errors.Is(err, ErrInvalidSchema) {
		t.Errorf("Canonical of half a text: %v, want ErrInvalidSchema", err)
	}
}

func TestCanonicalNumber(t *testing.T) {
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "0e5": "0", "1": "1", "1.0": "1", "10": "10", "1e1": "10", "1E+2": "100", "-1.50": "-1.5",
		"0.001": "0.001", "1e-6": "0.000001", "1e-7": "1e-7", "123e-9": "1.23e-7", "1e20": "100000000000000000000",
		"1e21": "1e+21", "1234e30": "1.234e+33", "9007199254740993": "9007199254740993", "0.1": "0.1", "12.5e1": "125",
		"1.00000000000000000000000000001": "1.00000000000000000000000000001", "1e400": "1e+400",
		"123456789012345678901": "123456789012345678901", "1234567890123456789012": "1.234567890123456789012e+21",
	} {
		if got := canonicalNumber(text); got != want {
			t.Errorf("canonicalNumber(%s) = %s, want %s", text, got, want)
		}
		if got := string(appendCanonical(nil, json.Number(want))); got != want {
			t.Errorf("canonical %s became %s", want, got)
		}
	}
}

func TestFingerprint(t *testing.T) {
	sum := func(text string, o Options) string {
		s, err := Compile(text, o)
		if err != nil {
			t.Fatal(err)
		}
		return s.Fingerprint()
	}
	one := sum(`{"type":"object","properties":{"a":{"maximum":1e2}}}`, Options{})
	if len(one) != 64 || one != sum("{\"properties\": {\"a\": {\"maximum\": 100.0}},\n \"type\": \"object\"}", Options{}) {
		t.Error("space, order and spelling change the fingerprint")
	}
	if one == sum(`{"type":"object","properties":{"a":{"maximum":101}}}`, Options{}) {
		t.Error("a change does not change the fingerprint")
	}
	if one == sum(`{"type":"object","properties":{"a":{"maximum":1e2}}}`, Options{Draft: Draft7}) {
		t.Error("another draft does not change the fingerprint")
	}
}
