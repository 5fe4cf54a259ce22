// Package schemas holds registrations of schemas and backfills through them to the result that
// they have when they are left alone, while their processes and their broker are ended by SIGKILL
// at random moments; and it deploys a release whose schema is another one while all write and read. Its
// tests run themselves again as child processes, see TestMain.
package schemas
