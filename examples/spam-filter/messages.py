"""Messages for the two spam filters: to train on, and to judge."""

TRAIN = [
    ("spam", "Congratulations! You have won a free cruise, claim your prize now"),
    ("spam", "URGENT: your account will be closed, verify your password at this link"),
    ("spam", "Lose 20 pounds in two weeks with this one miracle pill"),
    ("spam", "Cheap loans approved today, no questions asked, reply with your bank details"),
    ("spam", "Hot singles in your area want to meet you tonight, click here"),
    ("spam", "Earn 5000 dollars a week working from home, limited offer"),
    ("spam", "You are our lucky winner, send a small fee to receive the lottery money"),
    ("spam", "Buy designer watches at 90 percent off, today only"),
    ("ham", "Can you send me the slides from this morning's meeting?"),
    ("ham", "Dinner at eight tonight? I will bring dessert"),
    ("ham", "The build fails on the new machine, I attached the log"),
    ("ham", "Your appointment with Dr. Weber is on Tuesday at 10:30"),
    ("ham", "Thanks for your help yesterday, the report is finished now"),
    ("ham", "Mum asks whether you are coming home for the weekend"),
    ("ham", "The train is delayed by twenty minutes, start without me"),
    ("ham", "Please review the second chapter before Friday"),
]
JUDGE = [
    ("spam", "Winner! Claim your free holiday before midnight, click the link"),
    ("spam", "Your bank account is suspended, confirm your card number immediately"),
    ("spam", "Make money fast from home, guaranteed income, act now"),
    ("spam", "Exclusive discount on luxury watches, order today"),
    ("ham", "Could you review my pull request when you have time?"),
    ("ham", "We are meeting at the station at six, do not be late"),
    ("ham", "I finished the second draft, the file is in the shared folder"),
    ("ham", "Happy birthday! Shall we have lunch on Sunday?"),
]
